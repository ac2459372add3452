package docker_test

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

// follow runs a container's workload and returns its output and exit.
type follow struct {
	workload *docker.Workload
	out      <-chan string
	exit     <-chan supervisor.Exit
}

func startFollow(t *testing.T, host, id string, resume bool, since time.Time) follow {
	t.Helper()
	w, err := docker.NewWorkload(docker.Follow{Host: host, Container: id, Since: since}, resume)
	if err != nil {
		t.Fatal(err)
	}
	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	started, err := w.Start(ctx, pipe, pipe)
	if err != nil {
		t.Fatal(err)
	}
	if started.Ref != id || started.At.IsZero() {
		t.Errorf("started = %+v", started)
	}
	out, exit := make(chan string, 1), make(chan supervisor.Exit, 1)
	go func() {
		body, err := io.ReadAll(r)
		if err != nil {
			body = append(body, err.Error()...)
		}
		out <- string(body)
	}()
	go func() {
		e := w.Wait(ctx)
		if err := pipe.Close(); err != nil {
			e.Err = err.Error()
		}
		exit <- e
	}()
	return follow{w, out, exit}
}

func makeContainer(t *testing.T, fake *dockertest.Engine, words ...string) string {
	t.Helper()
	fake.AddImage("x")
	id, err := dial(t, fake.Host).Create(testContext(t), docker.Container{Name: "c", Image: "x", Command: words})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestFollow_ShortContainer(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	f := startFollow(t, fake.Host, makeContainer(t, fake, "echo", "done at once"), false, time.Time{})
	if exit := <-f.exit; exit.Code != 0 || exit.Err != "" {
		t.Errorf("exit = %+v", exit)
	}
	if out := <-f.out; out != "done at once\n" {
		t.Errorf("output = %q", out)
	}
}

func TestFollow_StreamEndsBeforeTheLastWords(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	id := makeContainer(t, fake, "stubborn")
	fake.LoseTail()
	f := startFollow(t, fake.Host, id, false, time.Time{})
	for !fake.Asked("GET /containers/.*/logs") {
		time.Sleep(time.Millisecond)
	}
	e := dial(t, fake.Host)
	for _, name := range []string{"USR1", "KILL"} {
		if err := e.Signal(testContext(t), id, name); err != nil {
			t.Fatal(err)
		}
	}
	<-f.exit
	if out := <-f.out; out != "got USR1\n" {
		t.Errorf("output = %q", out)
	}
}

func TestFollow_DaemonRestart(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	id := makeContainer(t, fake, "stubborn")
	f := startFollow(t, fake.Host, id, false, time.Time{})
	e := dial(t, fake.Host)
	signal := func(name string) {
		t.Helper()
		if err := e.Signal(testContext(t), id, name); err != nil {
			t.Fatal(err)
		}
	}
	signal("HUP")
	fake.Down()
	fake.Up()
	signal("USR1")
	signal("KILL")
	if exit := <-f.exit; exit.Code != 137 || exit.Signal != 9 {
		t.Errorf("exit = %+v", exit)
	}
	if out := <-f.out; out != "got HUP\ngot USR1\n" {
		t.Errorf("each line once, in order; got %q", out)
	}
}

func TestFollow_ResumesBehindWhatWasWritten(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	id := makeContainer(t, fake, "stubborn")
	e, ctx := dial(t, fake.Host), testContext(t)
	for _, step := range []func() error{
		func() error { return e.Start(ctx, id) },
		func() error { return e.Signal(ctx, id, "HUP") },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	f := startFollow(t, fake.Host, id, true, time.Now())
	for _, name := range []string{"USR1", "KILL"} {
		if err := e.Signal(ctx, id, name); err != nil {
			t.Fatal(err)
		}
	}
	<-f.exit
	if out := <-f.out; out != "got USR1\n" {
		t.Errorf("output = %q", out)
	}
	starts := 0
	for _, r := range fake.Requests() {
		if strings.HasSuffix(r, "/start") {
			starts++
		}
	}
	if starts != 1 {
		t.Errorf("a resumed container was started again: %d starts", starts)
	}
}

func TestFollow_RemovedBySomebodyElse(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	id := makeContainer(t, fake, "sleep")
	f := startFollow(t, fake.Host, id, false, time.Time{})
	fake.Kill(id)
	if exit := <-f.exit; exit.Code == 0 || !strings.Contains(exit.Err, "removed by somebody else") {
		t.Errorf("exit = %+v", exit)
	}
}

func TestFollow_StartRefused(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	id := makeContainer(t, fake, "sleep")
	fake.Break(dockertest.Fault{Match: "POST .*/start", Status: 400, Text: `exec: "nothing": executable file not found in $PATH`})
	w, err := docker.NewWorkload(docker.Follow{Host: fake.Host, Container: id}, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Start(context.Background(), os.Stdout, os.Stderr); err == nil || !strings.Contains(err.Error(), "executable file not found") {
		t.Fatalf("start: %v", err)
	}
}

func TestFollow_Terminal(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	fake.AddImage("x")
	e := dial(t, fake.Host)
	id, err := e.Create(testContext(t), docker.Container{Name: "c", Image: "x", Command: []string{"stubborn"}, TTY: true})
	if err != nil {
		t.Fatal(err)
	}
	f := startFollow(t, fake.Host, id, false, time.Time{})
	for _, name := range []string{"USR1", "HUP", "KILL"} {
		if err := e.Signal(testContext(t), id, name); err != nil {
			t.Fatal(err)
		}
	}
	<-f.exit
	if out := <-f.out; out != "got USR1\ngot HUP\n" {
		t.Errorf("output = %q", out)
	}
}

// A log driver that cannot be read keeps no task waiting.
func TestFollow_LogsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	fake.AddImage("x")
	id, err := dial(t, fake.Host).Create(testContext(t), docker.Container{Name: "c", Image: "x", Command: []string{"exit", "3"}, LogType: "syslog"})
	if err != nil {
		t.Fatal(err)
	}
	f := startFollow(t, fake.Host, id, false, time.Time{})
	if exit := <-f.exit; exit.Code != 3 {
		t.Errorf("exit = %+v", exit)
	}
	if out := <-f.out; out != "" {
		t.Errorf("output = %q", out)
	}
}
