# Each target is one line that calls tools/.
MODEL ?= demo
PROMPT ?= What is the capital of France?

.PHONY: run test check clients bench peer clean
run: ; @tools/setup && .venv/bin/caldrix run $(MODEL) -p "$(PROMPT)"
test: ; @tools/setup dev && tools/test
check: ; @{ [ -n "$$CALDRIX_VENV" ] || tools/setup dev; } && tools/check
clients: ; @tools/clients
bench: ; @{ [ -n "$$CALDRIX_VENV" ] || tools/setup dev; } && tools/bench $(MODEL)
peer: ; @tools/peer
clean: ; @rm -rf .venv .venv-clients build caldrix/_native*.so caldrix.egg-info
