# HeteroFlow. `make help` lists every target.
SHELL   := /bin/bash
GO      ?= go
BIN     := bin
VERSION ?= 0.1.0-dev
LDFLAGS := -s -w -X github.com/heteroflow/heteroflow/internal/version.Version=$(VERSION)
SUMMARY := $(GO) run ./internal/testkit/summary
# Tools are run from the module proxy by version, so that nothing has to be installed first.
GOFUMPT     := $(GO) run mvdan.cc/gofumpt@v0.12.0
STATICCHECK := $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME    ?= 10s
FUZZPKG     ?= ./...

export GOFLAGS += -buildvcs=false
# NVML's header marks half of itself deprecated; hundreds of warnings would hide ours.
export CGO_CFLAGS += -w

.DEFAULT_GOAL := help
.PHONY: help build test unit race e2e lint cross verify generate fmt fuzz nightly gateway-sim gateway-bench bench demo clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-10s %s\n", $$1, $$2}'

build: ## build every binary into bin/
	@mkdir -p $(BIN)
	$(GO) build -ldflags "$(LDFLAGS)" -o $(BIN)/ ./cmd/...

test: verify lint cross race e2e ## everything CI runs

unit: ## unit tests without the race detector, the quick round while working
	$(GO) test -json $$($(GO) list ./... | grep -v /e2e) | $(SUMMARY)

race: ## unit tests with the race detector, and without it those that count allocations; the gateway's on both server sides
	$(GO) test -race -json $$($(GO) list ./... | grep -v /e2e) | $(SUMMARY)
	$(GO) test -run Frugal -json ./device-plugins/... ./gateway/... | $(SUMMARY)
	HETEROFLOW_GATEWAY_SERVER=net/http $(GO) test -json ./gateway/server | $(SUMMARY)

e2e: build ## end-to-end suite on the embedded engine and on each real Nomad found on PATH
	HETEROFLOW_BIN=$(abspath $(BIN)) $(GO) test -count=1 -timeout 40m -json ./e2e/... | $(SUMMARY)

lint: ## format, vet and static checks
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(STATICCHECK) ./...

cross: ## build and vet for linux/amd64, linux/arm64 and windows/amd64, all without cgo
	CGO_ENABLED=0 GOOS=linux GOARCH=amd64 $(GO) vet ./...
	CGO_ENABLED=0 $(GO) test -run WithoutCgo ./device-plugins/nvidia
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 $(GO) vet ./...
	CGO_ENABLED=0 GOOS=windows GOARCH=amd64 $(GO) build ./...
	CGO_ENABLED=0 GOOS=windows GOARCH=amd64 $(GO) vet ./device-plugins/... ./gateway/... ./cmd/heteroflow/command

verify: ## check that generated files and go.mod are current
	$(GO) mod tidy -diff
	$(GO) mod verify >/dev/null
	$(GO) test -count=1 -run 'TestGenerated' ./api/... ./internal/...

generate: ## generate code again from api/openapi.yaml, the .proto files and the SQL, and the tables of docs/hardware.md
	./api/generate.sh
	./internal/nomadplugin/proto/generate.sh
	./internal/store/generate.sh
	$(GO) test -count=1 -run TestHardware . -update

fmt: ## format the Go code
	$(GOFUMPT) -w $$(git ls-files '*.go' | grep -v -e '\.pb\.go$$' -e '\.gen\.go$$')

# To make an input smaller is tried a hundred times, not for a minute, which would be all of FUZZTIME.
fuzz: ## run each fuzz target of FUZZPKG (./...) for FUZZTIME (10s)
	@set -e; for pkg in $$($(GO) list $(FUZZPKG)); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || :); do \
	    echo "$$pkg $$target"; $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x $$pkg; \
	  done; done

nightly: ## the long form of the property tests and experiments: some hours
	HETEROFLOW_TEST_STEPS=2000000 $(GO) test -count=1 -timeout 0 -run '^TestSteps$$' ./placement-service/engine
	@set -e; for pkg in $$(grep -rl --include='*_test.go' 'rapid\.Check' . | xargs -n 1 dirname | sort -u); do \
	  $(GO) test -count=1 -timeout 0 $$pkg -rapid.checks=20000; done
	HETEROFLOW_OPENB_LONG=1 HETEROFLOW_GATEWAY_SIM=full $(GO) test -count=1 -timeout 0 ./placement-service/engine/openb ./gateway/simulate
	HETEROFLOW_GATEWAY_LONG=1 $(GO) test -count=1 -timeout 0 -v -run '^(TestP84|TestP86|TestDatabaseAway)' ./gateway/server

gateway-sim: ## drive the choice of backends over recorded traffic and hold its figures
	HETEROFLOW_GATEWAY_SIM=full $(GO) test -count=1 -v ./gateway/simulate

gateway-bench: ## measure the gateway beside HAProxy, nginx and a plain Go proxy, where they are installed; BENCH='-only events' for less
	@mkdir -p $(BIN)
	$(GO) build -ldflags "$(LDFLAGS)" -o $(BIN)/ ./cmd/heteroflow
	$(GO) run ./gateway/bench -binary $(BIN)/heteroflow $(BENCH)

bench: build ## measure the figures of the README
	@set -o pipefail; \
	figure() { $(GO) test -run '^$$' -bench "^Benchmark$$1$$" -benchtime $$2 $${@:4} ./$$3 | grep '^Benchmark'; }; \
	figure Decision 200x placement-service/engine; \
	figure DecideSeveral 200x placement-service/engine; \
	figure Queues 1x placement-service/engine; \
	figure Choose 200x placement-service/engine/links; \
	figure Gang512 20x placement-service/engine/gang; \
	figure KueueTopology 1x placement-service/engine/gang; \
	$(GO) test -run '^$$' -bench '^BenchmarkRacks$$' -benchtime 1x -timeout 60m ./placement-service/engine/gang | grep -E '^Benchmark|not from' || exit 1; \
	figure ProxyAdded 300x placement-service/server; \
	HETEROFLOW_BIN=$(abspath $(BIN)) figure ProxyAdded 100x e2e; \
	figure Start 3x internal/embedded; \
	figure 'Cycle8Cards.*' 50x device-plugins/nvidia; \
	figure Cycle8Cards 50x device-plugins/device; \
	figure Plugin8Cards 20x cmd/heteroflow-device; \
	figure StartTask 40x cmd/heteroflow-driver; \
	figure Start100AtOnce 3x cmd/heteroflow-driver; \
	figure Idle50Tasks 1x cmd/heteroflow-driver; \
	for brand in nvidia amd ascend biren cambricon enflame hygon iluvatar intel kunlunxin metax mthreads; do \
	  figure Parse_OneMiB 10x device-plugins/$$brand | sort -k 5 -n | tail -n 1; \
	done; \
	figure ParseMatrix_Hostile 10x device-plugins/topology; \
	figure '(Placement(Fill|Churn|Decision|Pipeline)|PipelineDecision)' 1x placement-service/engine/openb -timeout 3h

demo: build ## the whole path on this machine: simulated cards, jobs, a streamed chat; DEMO_EXIT=1 ends by itself
	@./jobspecs/demo.sh

clean: ## remove what was built
	rm -rf $(BIN) .demo
