package driver

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
	"github.com/heteroflow/heteroflow/task-driver/probe"
)

// engineServer stands in for the engine in a task: it answers as vLLM does, as long as it is well.
func engineServer(t *testing.T) (port *driverpb.PortMapping, well *atomic.Bool) {
	t.Helper()
	well = &atomic.Bool{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !well.Load():
			http.Error(w, "Loading model", http.StatusServiceUnavailable)
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"qwen","owned_by":"vllm"}]}`)
		case r.URL.Path == "/version":
			fmt.Fprint(w, `{"version":"0.10.1"}`)
		}
	}))
	t.Cleanup(s.Close)
	_, text, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return &driverpb.PortMapping{Label: "http", Value: int32(n), To: 8000, HostIp: "127.0.0.1"}, well
}

func checkBlock(pairs ...any) map[string]any {
	out := map[string]any{"interval": "1s", "timeout": "1s"}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i].(string)] = pairs[i+1]
	}
	return out
}

func TestProbes_ReadyThenHungThenFailed(t *testing.T) {
	t.Parallel()
	port, well := engineServer(t)
	r := newRig(t, nil)
	said := r.hear()
	config := shell(`trap 'exit 0' TERM; while :; do sleep 0.05; done`)
	config["readiness"] = checkBlock("port", "http")
	config["liveness"] = checkBlock("port", strconv.Itoa(int(port.Value)), "failures", 2)
	j := r.job(config, func(c *driverpb.TaskConfig) { c.Resources.Ports = []*driverpb.PortMapping{port} })
	h := r.start(j)
	attributes := func() map[string]string {
		_, attrs, err := r.Inspect(r.ctx, j.cfg.Id)
		if err != nil {
			t.Fatal(err)
		}
		return attrs
	}
	if ready := attributes()["ready"]; ready != "false" {
		t.Errorf("ready = %q while it loads", ready)
	}
	well.Store(true)
	eventually(t, func() bool { return attributes()["engine"] == "vllm" }, "the engine is not found")
	if a := attributes(); a["ready"] != "true" || a["engine_version"] != "0.10.1" || a["models"] != "qwen" {
		t.Errorf("attributes are %v", a)
	}
	eventually(t, func() bool {
		return strings.Contains(said.String(), "Ready after ") && strings.Contains(said.String(), "Serving: vllm 0.10.1 with qwen map[engine:vllm engine_version:0.10.1 models:qwen]")
	}, "events do not tell")
	// The next driver goes on to watch; the handle is all it has.
	h.Config.MsgpackDriverConfig = nil
	r.restart()
	said = r.hear()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return strings.Contains(said.String(), "Ready after ") }, "the next driver does not ask")
	well.Store(false)
	exit, err := r.Wait(r.ctx, j.cfg.Id)
	if err == nil || !strings.Contains(err.Error(), "the watchdog ended the task: it is not alive, 2 checks failed: /health answers 503: Loading model") || exit == nil {
		t.Errorf("wait: %v, %v", exit, err)
	}
	if !strings.Contains(said.String(), "The task is ended, its restart policy decides what follows: it is not alive") {
		t.Errorf("events:\n%s", said)
	}
}

func TestProbes_ExecAndGrace(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	config := shell("exec sleep 1000")
	config["readiness"] = checkBlock("type", "exec", "command", []string{"/bin/sh", "-c", "exit 7"}, "grace", "1s", "failures", 1)
	j := r.job(config)
	r.start(j)
	if _, err := r.Wait(r.ctx, j.cfg.Id); err == nil || !strings.Contains(err.Error(), "/bin/sh exits with 7") {
		t.Errorf("wait: %v", err)
	}
}

func TestProbes_AStopIsNoFailure(t *testing.T) {
	t.Parallel()
	port, well := engineServer(t)
	well.Store(true)
	r := newRig(t, nil)
	said := r.hear()
	config := shell(`trap 'sleep 3; exit 0' TERM; while :; do sleep 0.05; done`)
	config["liveness"] = checkBlock("port", "http", "failures", 1, "grace", "0s")
	j := r.job(config, func(c *driverpb.TaskConfig) { c.Resources.Ports = []*driverpb.PortMapping{port} })
	r.start(j)
	eventually(t, func() bool { return strings.Contains(said.String(), "Alive after") }, "not asked")
	well.Store(false)
	if err := r.Stop(r.ctx, j.cfg.Id, 30*time.Second, ""); err != nil {
		t.Fatal(err)
	}
	if exit := r.wait(j.cfg.Id); exit.ExitCode != 0 || strings.Contains(said.String(), "watchdog") {
		t.Errorf("exit %v, events:\n%s", exit, said)
	}
}

func TestProbes_OfContainers(t *testing.T) {
	t.Parallel()
	r, _ := dockerRig(t, nil)
	said := r.hear()
	config := app("stubborn")
	config["readiness"] = checkBlock("type", "exec", "command", []string{"exit", "0"})
	config["liveness"] = checkBlock("port", "http", "type", "tcp", "on_failure", "report", "failures", 1)
	port, _ := engineServer(t)
	j := r.job(config, func(c *driverpb.TaskConfig) { c.Resources.Ports = []*driverpb.PortMapping{port} })
	r.start(j)
	eventually(t, func() bool { return strings.Contains(said.String(), "Ready after") }, "exec in the container is not asked")
	task, err := r.get(j.cfg.Id)
	if err != nil {
		t.Fatal(err)
	}
	for port, want := range map[string]string{"http": "127.0.0.1:" + strconv.Itoa(int(port.Value)), "8000": "172.17.0.9:8000"} {
		if got, err := (probed{task}).Address(r.ctx, port); err != nil || got != want {
			t.Errorf("port %s is at %s, %v; want %s", port, got, err, want)
		}
	}
}

func TestProbes_TheImagesOwn(t *testing.T) {
	t.Parallel()
	r, fake := dockerRig(t, nil)
	said := r.hear()
	fake.SetHealth("starting")
	config := app("stubborn")
	config["liveness"] = checkBlock("type", "image", "failures", 1, "grace", "10m")
	j := r.job(config)
	r.start(j)
	fake.SetHealth("healthy")
	eventually(t, func() bool { return strings.Contains(said.String(), "Alive after") }, "the HEALTHCHECK is not asked")
	task, err := r.get(j.cfg.Id)
	if err != nil {
		t.Fatal(err)
	}
	task.endProbes()
	for status, want := range map[string]string{"unhealthy": "its HEALTHCHECK says unhealthy: said unhealthy", "none": "the image has no HEALTHCHECK", "": "the image has no HEALTHCHECK"} {
		fake.SetHealth(status)
		if err := (probed{task}).Health(r.ctx); err == nil || err.Error() != want {
			t.Errorf("%q gives %v, want %q", status, err, want)
		}
	}
}

func TestProbes_Config(t *testing.T) {
	t.Parallel()
	tc, err := decodeHCL(t, `
		image = "a:1"
		readiness {
			port  = 8000
			grace = "45m"
		}
		liveness {
			type     = "exec"
			command  = ["check"]
			interval = "1m"
		}`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := tc.probes()
	if err != nil {
		t.Fatal(err)
	}
	want := &probe.Plan{
		Ready: &probe.Check{Type: "http", Port: "8000", Path: "/health", Interval: 10 * time.Second, Timeout: 5 * time.Second, Failures: 3},
		Live:  &probe.Check{Type: "exec", Command: []string{"check"}, Interval: time.Minute, Timeout: 5 * time.Second, Failures: 3},
		Grace: 45 * time.Minute,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for text, words := range map[string]string{
		"healthchecks { disable = true }\nliveness { type = \"image\" }": "there is none",
		`readiness {}`:                                                                          "port is missing",
		`readiness { type = "exec" }`:                                                           "command is missing",
		`readiness { type = "grpc" }`:                                                           "not known",
		"readiness {\n port = 1\n interval = \"10ms\"\n}":                                       "interval",
		"readiness {\n port = 1\n failures = 0\n}":                                              "failures",
		"readiness {\n port = 1\n grace = \"soon\"\n}":                                          "grace",
		"liveness {\n port = 1\n on_failure = \"pray\"\n}":                                      "restart or report",
		"liveness {\n port = 1\n path = \"health\"\n}":                                          "/health",
		"network_mode = \"none\"\nliveness { port = 1 }":                                        "without network",
		"readiness {\n port = 1\n grace = \"1m\"\n}\nliveness {\n port = 1\n grace = \"2m\"\n}": "write each in one",
	} {
		if _, err := decodeHCL(t, "image = \"a:1\"\n"+text); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s gives %v, want %q", text, err, words)
		}
	}
	r := newRig(t, nil)
	config := shell("true")
	config["readiness"] = checkBlock("port", "http")
	if _, _, err := r.Start(r.ctx, r.taskConfig(config)); err == nil || !strings.Contains(err.Error(), `no port "http"`) {
		t.Errorf("start: %v", err)
	}
}
