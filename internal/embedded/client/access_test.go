package client

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
)

func TestRestartTaskSignalExec(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	alloc := newAlloc(`trap 'echo told' USR1; echo started; ` + forever)
	r.SetAllocs([]*api.Allocation{alloc})
	r.status(t, "running")
	until(t, "the start", func() bool { return r.log(t, "stdout") == "started\n" })
	if err := r.Signal(allocID, "", "SIGUSR1"); err != nil {
		t.Fatal(err)
	}
	until(t, "the signal", func() bool { return strings.Contains(r.log(t, "stdout"), "told") })
	var out bytes.Buffer
	code, err := r.Exec(t.Context(), ExecRequest{
		AllocID: allocID, Task: "web", Command: []string{"/bin/sh", "-c", "cat; echo $NOMAD_TASK_NAME; exit 4"},
		Stdin: strings.NewReader("typed "), Stdout: &out, Stderr: &out,
	})
	if err != nil || code != 4 || out.String() != "typed web\n" {
		t.Errorf("exec: code %d, %v, output %q", code, err, out.String())
	}
	if err := r.RestartTask(allocID, "web"); err != nil {
		t.Fatal(err)
	}
	until(t, "the second start", func() bool { return strings.Count(r.log(t, "stdout"), "started") == 2 })
	if s := r.up.alloc(allocID).TaskStates["web"]; s.Restarts != 1 || !strings.Contains(eventTypes(s), api.TaskRestartSignal) {
		t.Errorf("restarts %d, events %s", s.Restarts, eventTypes(s))
	}
	for name, err := range map[string]error{
		"signal":  r.Signal("none", "", "SIGUSR1"),
		"restart": r.RestartTask(allocID, "none"),
	} {
		if !errors.Is(err, ErrUnknownAlloc) {
			t.Errorf("%s: %v, want ErrUnknownAlloc", name, err)
		}
	}
}

func TestLogs_FollowAndOrigin(t *testing.T) {
	t.Parallel()
	r := start(t, testConfig(t))
	r.SetAllocs([]*api.Allocation{newAlloc("for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done", batch)})
	until(t, "the first line", func() bool {
		_, err := r.runner(allocID)
		return err == nil && r.up.alloc(allocID).ClientStatus == "running"
	})
	var b bytes.Buffer
	err := r.Logs(t.Context(), LogRequest{AllocID: allocID, Task: "web", Type: "stdout", Follow: true}, func(f *api.StreamFrame) error {
		b.Write(f.Data)
		return nil
	})
	if err != nil || strings.Count(b.String(), "line") != 5 {
		t.Errorf("followed %q, %v", b.String(), err)
	}
	b.Reset()
	err = r.Logs(t.Context(), LogRequest{AllocID: allocID, Task: "web", Type: "stdout", Origin: "end", Offset: 7}, func(f *api.StreamFrame) error {
		b.Write(f.Data)
		return nil
	})
	if err != nil || b.String() != "line 5\n" {
		t.Errorf("last 7 bytes are %q, %v", b.String(), err)
	}
	list, err := r.List(allocID, "alloc/logs")
	if err != nil || !strings.Contains(fmt.Sprint(names(list)), "web.stdout.0") {
		t.Errorf("list %v, %v", names(list), err)
	}
	b.Reset()
	err = r.Stream(t.Context(), StreamRequest{AllocID: allocID, Path: "alloc/logs/web.stdout.0", Offset: 5, Limit: 1}, func(f *api.StreamFrame) error {
		b.Write(f.Data)
		return nil
	})
	if err != nil || b.String() != "1" {
		t.Errorf("streamed %q, %v", b.String(), err)
	}
	for _, p := range []string{"../../../etc/passwd", "alloc/logs/.web.stdout.fifo"} {
		if err := r.Stream(t.Context(), StreamRequest{AllocID: allocID, Path: p}, func(*api.StreamFrame) error { return nil }); err == nil {
			t.Errorf("%s was read", p)
		}
	}
}

func names(list []*api.AllocFileInfo) []string {
	var out []string
	for _, f := range list {
		out = append(out, f.Name)
	}
	return out
}
