/* The part of Python's limited API that a cffi module uses, for machines without Python's own headers.
 *
 * Owns nothing but declarations of functions whose form PEP 384 fixes for every Python 3, so the module fits any of them.
 * tools/build_native.py prefers the real Python.h and takes this one where there is none (Debian ships it in python3-dev).
 * References are counted through functions here, since macros would need the layout of an object.
 */
#ifndef Py_PYTHON_H
#define Py_PYTHON_H

#include <alloca.h>
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <wchar.h>

typedef struct _object PyObject;
typedef struct _ts PyThreadState;
typedef ptrdiff_t Py_ssize_t;

#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *

/* references; the singleton None, which is looked at by address only */
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
#define Py_INCREF(object) Py_IncRef((PyObject *)(object))
#define Py_DECREF(object) Py_DecRef((PyObject *)(object))
#define Py_XDECREF(object) Py_DecRef((PyObject *)(object))
extern char _Py_NoneStruct;
#define Py_None ((PyObject *)(void *)&_Py_NoneStruct)

/* the interpreter lock */
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *);
#define Py_BEGIN_ALLOW_THREADS { PyThreadState *_save = PyEval_SaveThread();
#define Py_END_ALLOW_THREADS PyEval_RestoreThread(_save); }

/* errors, calls, memory */
PyObject *PyErr_Occurred(void);
void Py_FatalError(const char *) __attribute__((noreturn));
int PyArg_UnpackTuple(PyObject *, const char *, Py_ssize_t, Py_ssize_t, ...);
PyObject *PyImport_ImportModule(const char *);
PyObject *PyObject_CallMethod(PyObject *, const char *, const char *, ...);
void *PyObject_Malloc(size_t);
void PyObject_Free(void *);

/* numbers */
PyObject *PyBool_FromLong(long);
PyObject *PyFloat_FromDouble(double);
double PyFloat_AsDouble(PyObject *);
PyObject *PyLong_FromLong(long);
PyObject *PyLong_FromLongLong(long long);
PyObject *PyLong_FromUnsignedLong(unsigned long);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
PyObject *PyLong_FromVoidPtr(void *);

#endif
