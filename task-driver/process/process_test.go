package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// runTask starts a command as a supervisor does and waits for it. The kernel ends the child with the thread that made
// it, so that the thread is kept.
func runTask(t *testing.T, c Command) (supervisor.Exit, string) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	workload := New(c)
	if _, err := workload.Start(testContext(t), w, w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	exit := workload.Wait(testContext(t))
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return exit, string(out)
}

func shell(t *testing.T, script string) Command {
	t.Helper()
	return Command{Argv: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin", "A=b"}, Dir: t.TempDir(), Group: Group{Mode: Unlimited}}
}

func TestWorkload(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		script  string
		want    supervisor.Exit
		wantOut string
	}{
		"output and environment": {"echo $A; env | wc -l", supervisor.Exit{}, "b\n"},
		"exit code":              {"exit 42", supervisor.Exit{Code: 42}, ""},
		"killed by a signal":     {"kill -TERM $$", supervisor.Exit{Code: 143, Signal: 15}, ""},
		"leaves children behind": {"sleep 1000 & sleep 1000 & exit 1", supervisor.Exit{Code: 1}, ""},
		"has the usual score":    {"cat /proc/self/oom_score_adj", supervisor.Exit{}, "0\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exit, out := runTask(t, shell(t, c.script))
			if diff := cmp.Diff(c.want, exit); diff != "" {
				t.Errorf("exit (-want +got):\n%s", diff)
			}
			if !strings.HasPrefix(out, c.wantOut) {
				t.Errorf("output %q, want %q", out, c.wantOut)
			}
		})
	}
}

func TestWorkload_Refusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		argv []string
		user string
		want string
	}{
		"no command":            {nil, "", "has no command"},
		"not on PATH":           {[]string{"no-such-program-anywhere"}, "", "neither in the task's local folder nor on its PATH"},
		"absent":                {[]string{"/absent/x"}, "", "does not exist on this node"},
		"below the folder":      {[]string{"bin/x"}, "", filepath.Join(dir, "bin/x")},
		"not executable":        {[]string{"./plain"}, "", "not an executable file"},
		"a folder":              {[]string{"/tmp"}, "", "not an executable file"},
		"unknown user":          {[]string{"sh"}, "no-such-user-here", `user "no-such-user-here" is not known`},
		"unknown group of user": {[]string{"sh"}, "root:no-such-group", `group "no-such-group" is not known`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := New(Command{Argv: c.argv, User: c.user, Env: []string{"PATH=/usr/bin:/bin"}, Dir: dir, Group: Group{Mode: Unlimited}})
			if _, err := w.Start(testContext(t), os.Stdout, os.Stderr); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("start: %v, want %q", err, c.want)
			}
		})
	}
}

func TestWorkload_LocalFolderBeforePATH(t *testing.T) {
	t.Parallel()
	c := shell(t, "")
	local := filepath.Join(c.Dir, "local")
	if err := errors.Join(os.Mkdir(local, 0o755), os.WriteFile(filepath.Join(local, "tool"), []byte("#!/bin/sh\necho mine\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	c.Argv = []string{"tool"}
	if _, out := runTask(t, c); out != "mine\n" {
		t.Errorf("output %q", out)
	}
}

func TestWorkload_OtherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("changing the user needs root")
	}
	c := shell(t, "id -u; id -g")
	c.Dir = "/"
	c.User = "nobody"
	exit, out := runTask(t, c)
	if exit.Code != 0 || strings.HasPrefix(out, "0\n") {
		t.Errorf("exit %+v, output %q", exit, out)
	}
	c.User = "65534:0"
	if _, out := runTask(t, c); out != "65534\n0\n" {
		t.Errorf("uid and gid: %q", out)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	p := HostPaths("/var/nomad/alloc/id", "web")
	for in, want := range map[string]string{
		"/alloc":                  "/var/nomad/alloc/id/alloc",
		"/local/conf/x.yml":       "/var/nomad/alloc/id/web/local/conf/x.yml",
		"/secrets/key":            "/var/nomad/alloc/id/web/secrets/key",
		"--config=/local/x":       "--config=/var/nomad/alloc/id/web/local/x",
		"/usr/bin:/local/bin":     "/usr/bin:/var/nomad/alloc/id/web/local/bin",
		"/localhost":              "/localhost",
		"/allocation/x":           "/allocation/x",
		"http://local/x":          "http://local/x",
		"see /local/x":            "see /local/x",
		"":                        "",
		"--map=/local/a:/alloc/b": "--map=/var/nomad/alloc/id/web/local/a:/var/nomad/alloc/id/alloc/b",
	} {
		if got := p.Value(in); got != want {
			t.Errorf("Value(%q) = %q, want %q", in, got, want)
		}
	}
	env := p.Env(map[string]string{"NOMAD_TASK_DIR": "/local", "PLAIN": "x=/local"})
	want := map[string]string{"NOMAD_TASK_DIR": "/var/nomad/alloc/id/web/local", "PLAIN": "x=/local"}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("env (-want +got):\n%s", diff)
	}
}

func FuzzPaths(f *testing.F) {
	for _, s := range []string{"/local/x", "a=/alloc", "::/", "=", "/secrets:/local"} {
		f.Add(s)
	}
	p := HostPaths("/host", "t")
	f.Fuzz(func(t *testing.T, s string) {
		if !strings.Contains(s, "/alloc") && !strings.Contains(s, "/local") && !strings.Contains(s, "/secrets") && p.Value(s) != s {
			t.Errorf("%q was changed to %q", s, p.Value(s))
		}
	})
}

func TestExec(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	exit, err := Exec(testContext(t), shell(t, "cat; echo e >&2; exit 9"), Streams{Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &errOut})
	if err != nil || exit.Code != 9 || out.String() != "in" || errOut.String() != "e\n" {
		t.Errorf("exec = %+v, %v; %q %q", exit, err, out.String(), errOut.String())
	}
}

func TestExec_EndsThoughTheUserKeepsStdinOpen(t *testing.T) {
	t.Parallel()
	stdin, keep := io.Pipe()
	defer keep.Close()
	if exit, err := Exec(testContext(t), shell(t, "exit 3"), Streams{Stdin: stdin, Stdout: io.Discard, Stderr: io.Discard}); err != nil || exit.Code != 3 {
		t.Errorf("exec = %+v, %v", exit, err)
	}
}

func TestExec_ContextKillsChildrenToo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := Exec(ctx, shell(t, "sleep 1000 & sleep 1000"), Streams{Stdout: io.Discard, Stderr: io.Discard}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("exec: %v", err)
	}
}

func TestExec_Terminal(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/ptmx"); err != nil {
		t.Skip("no pseudo-terminals here:", err)
	}
	resize := make(chan Size, 1)
	resize <- Size{Height: 33, Width: 77}
	var out bytes.Buffer
	stdin, keep := io.Pipe()
	defer keep.Close()
	script := `test -t 0 && test -t 1 && echo terminal; for i in $(seq 500); do s=$(stty size); test "$s" = "33 77" && break; sleep 0.01; done; echo $s; exit 4`
	exit, err := Exec(testContext(t), shell(t, script), Streams{TTY: true, Stdin: stdin, Stdout: &out, Resize: resize})
	if err != nil || exit.Code != 4 {
		t.Fatalf("exec = %+v, %v", exit, err)
	}
	if got := strings.Fields(out.String()); !cmp.Equal(got, []string{"terminal", "33", "77"}) {
		t.Errorf("output %q", out.String())
	}
}

func TestUsages(t *testing.T) {
	t.Parallel()
	c := shell(t, "sleep 1000 & exec sleep 1000")
	prepared, err := c.prepare()
	if err != nil {
		t.Fatal(err)
	}
	prepared.SysProcAttr.Setsid = true
	if err := prepared.Start(); err != nil {
		t.Fatal(err)
	}
	proc, err := supervisor.ProcOf(prepared.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		proc.KillSession()
		if err := prepared.Wait(); err == nil {
			t.Error("it was killed, yet ended well")
		}
		if left := Usages(proc.Session()); len(left) != 0 {
			t.Errorf("usage after the end: %+v", left)
		}
	}()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		all := Usages(proc.Session())
		if len(all) == 2 && all[0].RSSBytes > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("usages = %+v", all)
		}
	}
}
