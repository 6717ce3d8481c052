/* What a cffi module asks of pyconfig.h: nothing but whether there is a wchar_t.
 *
 * Goes with the Python.h beside it. It defines no debugging and no free-threaded build, so cffi picks the limited API;
 * tools/build_native.py refuses such builds of Python without their own headers.
 */
#define HAVE_WCHAR_H 1
