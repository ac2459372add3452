package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heteroflow/heteroflow/task-driver/process"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// TestMain lets the test binary be the supervisor that the tests launch.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "supervise" {
		os.Exit(supervisor.Main(os.Args[2], func(s supervisor.Spec) (supervisor.Workload, error) {
			var c process.Command
			if err := json.Unmarshal(s.Body, &c); err != nil {
				return nil, err
			}
			return process.New(c), nil
		}))
	}
	os.Exit(m.Run())
}

type fixture struct {
	t              *testing.T
	ctx            context.Context
	dir            string
	stdout, stderr string
	launcher       supervisor.Launcher
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	base := t.TempDir()
	f := &fixture{
		t: t, ctx: ctx, dir: supervisor.Dir(filepath.Join(base, "tasks"), "alloc/task/1"),
		stdout: filepath.Join(base, "out"), stderr: filepath.Join(base, "err"), launcher: supervisor.Self("supervise"),
	}
	t.Cleanup(func() {
		if err := supervisor.Remove(ctx, f.dir); err != nil {
			t.Error(err)
		}
		cancel()
	})
	return f
}

func (f *fixture) spec(script string) supervisor.Spec {
	f.t.Helper()
	body, err := json.Marshal(process.Command{
		Argv: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin:/usr/bin", "SECRET=s3cret"}, Dir: f.t.TempDir(),
		Group: process.Group{Mode: process.Unlimited},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return supervisor.Spec{TaskID: "alloc/task/1", Kind: "process", Stdout: f.stdout, Stderr: f.stderr, Body: body}
}

// collect makes a FIFO and reads it as Nomad's log collector does: opened once, until all writers have closed.
func (f *fixture) collect(path string) <-chan string {
	f.t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		f.t.Fatal(err)
	}
	out := make(chan string, 1)
	go func() {
		file, err := os.Open(path)
		if err != nil {
			out <- err.Error()
			return
		}
		defer file.Close()
		body, err := io.ReadAll(file)
		if err != nil {
			body = append(body, err.Error()...)
		}
		out <- string(body)
	}()
	return out
}

func (f *fixture) launch(script string) (supervisor.Status, <-chan string, <-chan string) {
	f.t.Helper()
	stdout, stderr := f.collect(f.stdout), f.collect(f.stderr)
	status, err := f.launcher.Launch(f.ctx, f.dir, f.spec(script))
	if err != nil {
		f.t.Fatal(err)
	}
	return status, stdout, stderr
}

func TestLaunch_RunsLogsAndKeepsTheExit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	status, stdout, stderr := f.launch("echo to stdout; echo to stderr >&2; exit 3")
	if status.Phase == supervisor.Starting || status.Task.PID == 0 {
		t.Fatalf("status after launch: %+v", status)
	}
	for range 2 { // the result can be asked for again
		got, err := supervisor.Watch(f.ctx, f.dir)
		if err != nil || got.Exit == nil || got.Exit.Code != 3 || got.Exit.Signal != 0 || got.EndedAt.IsZero() {
			t.Fatalf("watch = %+v, %v; want exit code 3", got, err)
		}
	}
	if got := <-stdout; got != "to stdout\n" {
		t.Errorf("stdout = %q", got)
	}
	if got := <-stderr; got != "to stderr\n" {
		t.Errorf("stderr = %q", got)
	}
}

func TestLaunch_LeavesNoSecretOnDisk(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.launch("exec sleep 60")
	err := filepath.WalkDir(f.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		body, err := os.ReadFile(path)
		if strings.Contains(string(body), "s3cret") {
			t.Errorf("%s holds the task's environment", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestLaunch_SaysWhyATaskDoesNotStart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	spec := f.spec("")
	spec.Stdout, spec.Stderr = os.DevNull, os.DevNull
	spec.Body = []byte(`{"argv":["/does/not/exist"],"dir":"/","group":{"mode":"none"}}`)
	_, err := f.launcher.Launch(f.ctx, f.dir, spec)
	var said *supervisor.StartError
	if !errors.As(err, &said) || !strings.Contains(said.Text, "does not exist on this node") || said.Again {
		t.Fatalf("launch: %v", err)
	}
}

func TestLaunch_RefusesALogThatIsALink(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	target := filepath.Join(t.TempDir(), "victim")
	if err := errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, f.stdout), os.Symlink(target, f.stderr)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.launcher.Launch(f.ctx, f.dir, f.spec("echo x")); err == nil || !strings.Contains(err.Error(), "open log") {
		t.Fatalf("launch: %v", err)
	}
	if body, err := os.ReadFile(target); err != nil || len(body) != 0 {
		t.Errorf("the link was followed: %q, %v", body, err)
	}
}

func TestLaunch_ContextEndsTheWait(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, path := range []string{f.stdout, f.stderr} { // nobody reads them
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(f.ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := f.launcher.Launch(ctx, f.dir, f.spec("echo x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("launch: %v", err)
	}
	status, err := supervisor.ReadStatus(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return !status.Supervisor.Alive() }, "the supervisor still waits")
}

func TestWatch_SupervisorKilled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	status, _, _ := f.launch("sleep 1000 & exec sleep 1000")
	if err := status.Supervisor.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := supervisor.Watch(f.ctx, f.dir); !errors.Is(err, supervisor.ErrGone) {
		t.Fatalf("watch: %v", err)
	}
	eventually(t, func() bool { return !status.Task.Alive() }, "the task outlived its supervisor")
	status.Task.KillSession()
	if left := status.Task.Session(); len(left) != 0 {
		t.Errorf("left in the session: %+v", left)
	}
	settled, err := supervisor.Settle(f.dir, supervisor.Exit{Code: 137, Signal: 9})
	if err != nil || settled.Exit.Code != 137 {
		t.Fatalf("settle = %+v, %v", settled, err)
	}
	if again, err := supervisor.Settle(f.dir, supervisor.Exit{Code: 1}); err != nil || again.Exit.Code != 137 {
		t.Fatalf("a second settle must not change the result: %+v, %v", again.Exit, err)
	}
}

func TestWatch_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.launch("exec sleep 1000")
	ctx, cancel := context.WithCancel(f.ctx)
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := supervisor.Watch(ctx, f.dir); !errors.Is(err, context.Canceled) {
		t.Fatalf("watch: %v", err)
	}
}

func TestTaskEnds_WithItsChildren(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	status, stdout, _ := f.launch("sleep 1000 & exit 0")
	if _, err := supervisor.Watch(f.ctx, f.dir); err != nil {
		t.Fatal(err)
	}
	if left := status.Task.Session(); len(left) != 0 {
		t.Errorf("left running: %+v", left)
	}
	<-stdout // closed although the child held it
}

func TestSignal_EndsTheTaskWithItsNumber(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	status, _, _ := f.launch("exec sleep 1000")
	if err := status.Task.SignalGroup(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	got, err := supervisor.Watch(f.ctx, f.dir)
	if err != nil || got.Exit.Code != 143 || got.Exit.Signal != 15 {
		t.Fatalf("exit = %+v, %v", got.Exit, err)
	}
	if err := status.Task.Signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestRemove_EndsEverything(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	status, _, _ := f.launch("sleep 1000 & exec sleep 1000")
	for range 2 {
		if err := supervisor.Remove(f.ctx, f.dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := supervisor.ReadStatus(f.dir); !errors.Is(err, supervisor.ErrNoState) {
		t.Errorf("state after remove: %v", err)
	}
	if status.Supervisor.Alive() || len(status.Task.Session()) != 0 {
		t.Error("something still runs")
	}
}

func TestSupervisor_DoesNothingWithoutGo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(f.ctx, os.Args[0], "supervise", f.dir) // stdin ends at once: the driver died
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("run: %v", err)
	}
	if _, err := supervisor.ReadStatus(f.dir); !errors.Is(err, supervisor.ErrNoState) {
		t.Errorf("it wrote a state: %v", err)
	}
}

func TestProc_PidReuse(t *testing.T) {
	t.Parallel()
	self, err := supervisor.ProcOf(os.Getpid())
	if err != nil || !self.Alive() {
		t.Fatalf("self = %+v, %v", self, err)
	}
	for name, p := range map[string]supervisor.Proc{
		"other start": {PID: self.PID, Start: self.Start + 1, Boot: self.Boot},
		"other boot":  {PID: self.PID, Start: self.Start, Boot: "0"},
		"no process":  {},
	} {
		if p.Alive() {
			t.Errorf("%s: alive", name)
		}
		if err := p.Signal(0); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%s: signal: %v", name, err)
		}
		if err := p.SignalGroup(unix.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("%s: signal group: %v", name, err)
		}
		p.KillSession() // must not hit this test
	}
}

func TestReadStatus_Damaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, body := range map[string]string{"no JSON": "{", "newer": `{"version":2}`, "empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, "status.json"), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := supervisor.ReadStatus(dir); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestList_SkipsWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	good := supervisor.Dir(base, "a/b/c")
	if err := errors.Join(os.MkdirAll(good, 0o700), os.MkdirAll(filepath.Join(base, "junk"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := supervisor.WriteStatus(good, supervisor.Status{TaskID: "a/b/c"}); err != nil {
		t.Fatal(err)
	}
	all, err := supervisor.List(base)
	if err != nil || len(all) != 1 || all[0].TaskID != "a/b/c" {
		t.Fatalf("list = %+v, %v", all, err)
	}
	if none, err := supervisor.List(filepath.Join(base, "absent")); err != nil || none != nil {
		t.Errorf("absent folder: %v, %v", none, err)
	}
}

func eventually(t *testing.T, done func() bool, failure string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(failure)
		}
	}
}
