package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/task-driver/cgroup"
	"github.com/heteroflow/heteroflow/task-driver/docker"
	"github.com/heteroflow/heteroflow/task-driver/docker/dockertest"
	"github.com/heteroflow/heteroflow/task-driver/supervisor"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func dial(t *testing.T, host string) *docker.Engine {
	t.Helper()
	e, err := docker.Dial(host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// TestEngine holds the fake and, where there is one, a real daemon to one set of expectations.
func TestEngine(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		fake := dockertest.New(t)
		fake.AddImage(dockertest.Image)
		suite(t, fake.Host)
	})
	t.Run("fake of Docker 18.09", func(t *testing.T) {
		t.Parallel()
		fake := dockertest.New(t)
		fake.AddImage(dockertest.Image)
		fake.SetAPIVersion("1.39")
		suite(t, fake.Host)
	})
	t.Run("real", func(t *testing.T) { suite(t, dockertest.Real(t)) })
	t.Run("real, statistics of the kernel", func(t *testing.T) { kernelStatistics(t, dockertest.Real(t)) })
}

func suite(t *testing.T, host string) {
	ctx := testContext(t)
	e := dial(t, host)
	make := func(t *testing.T, words ...string) string {
		t.Helper()
		id, err := e.Create(ctx, docker.Container{
			Name: "hf-suite-" + strings.ReplaceAll(t.Name(), "/", "-"), Image: dockertest.Image, Command: words,
			Labels: map[string]string{docker.LabelTask: t.Name()}, LogType: "json-file", MemoryBytes: 64 << 20,
			NetworkMode: "none",
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			for range 2 { // a second removal is no error
				if err := e.Remove(context.Background(), id); err != nil {
					t.Error(err)
				}
			}
			if _, err := e.State(context.Background(), id); !errors.Is(err, docker.ErrNotFound) {
				t.Errorf("state of a removed container: %v", err)
			}
		})
		return id
	}
	start := func(t *testing.T, words ...string) string {
		t.Helper()
		id := make(t, words...)
		for range 2 { // so is a second start
			if err := e.Start(ctx, id); err != nil {
				t.Fatal(err)
			}
		}
		return id
	}

	t.Run("info", func(t *testing.T) {
		info, err := e.Info(ctx)
		if err != nil || info.Version == "" || info.APIVersion == "" || len(info.Runtimes) == 0 {
			t.Fatalf("info = %+v, %v", info, err)
		}
	})
	t.Run("an image that is not there", func(t *testing.T) {
		if _, err := e.ImageID(ctx, "heteroflow-test/absent:1"); !errors.Is(err, docker.ErrNotFound) {
			t.Errorf("image id: %v", err)
		}
		if id, err := e.ImageID(ctx, dockertest.Image); err != nil || id == "" {
			t.Errorf("image id = %q, %v", id, err)
		}
	})
	t.Run("exit code", func(t *testing.T) {
		id := start(t, "exit", "7")
		if err := e.WaitExit(ctx, id); err != nil {
			t.Fatal(err)
		}
		state, err := e.State(ctx, id)
		if err != nil || state.Running || state.ExitCode != 7 || state.StartedAt.IsZero() || state.EndedAt.IsZero() || state.TaskID != t.Name() {
			t.Fatalf("state = %+v, %v", state, err)
		}
	})
	t.Run("logs", func(t *testing.T) {
		for words, want := range map[string]string{"echo hello out": "hello out\n", "warn hello err": "hello err\n"} {
			t.Run(strings.Fields(words)[0], func(t *testing.T) {
				id := start(t, strings.Fields(words)...)
				body, err := e.Logs(ctx, id, time.Time{})
				if err != nil {
					t.Fatal(err)
				}
				defer body.Close()
				raw, err := io.ReadAll(body)
				if err != nil || !strings.HasSuffix(string(raw), want) {
					t.Fatalf("logs = %q, %v", raw, err)
				}
			})
		}
	})
	t.Run("signals", func(t *testing.T) {
		id := start(t, "stubborn")
		// The first process of a container takes no signal before it has asked for it.
		waitLog(t, ctx, e, id, "got USR1", func() error { return e.Signal(ctx, id, "SIGUSR1") })
		waitLog(t, ctx, e, id, "got TERM", func() error { return e.Signal(ctx, id, "SIGTERM") })
		if err := e.Signal(ctx, id, "SIGKILL"); err != nil {
			t.Fatal(err)
		}
		if err := e.WaitExit(ctx, id); err != nil {
			t.Fatal(err)
		}
		if err := e.Signal(ctx, id, "SIGKILL"); !errors.Is(err, docker.ErrNotRunning) {
			t.Errorf("signal after the end: %v", err)
		}
		state, err := e.State(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(137, docker.ExitOf(state).Code); diff != "" {
			t.Errorf("exit (-want +got):\n%s", diff)
		}
	})
	t.Run("out of memory", func(t *testing.T) {
		id := start(t, "oom")
		if err := e.WaitExit(ctx, id); err != nil {
			t.Fatal(err)
		}
		var exit supervisor.Exit
		for !exit.OOMKilled { // the daemon may note the end first
			state, err := e.State(ctx, id)
			if exit = docker.ExitOf(state); err != nil || exit.Code == 0 {
				t.Fatalf("exit = %+v, %v", exit, err)
			}
		}
	})
	t.Run("list by label", func(t *testing.T) {
		id := start(t, "sleep")
		found, err := e.List(ctx, docker.LabelTask, t.Name())
		if err != nil || len(found) != 1 || found[0].ID != id || found[0].TaskID != t.Name() || !found[0].Running {
			t.Fatalf("list = %+v, %v", found, err)
		}
	})
	t.Run("much output at once", func(t *testing.T) { suiteFlood(t, ctx, e, host) })
	t.Run("statistics", func(t *testing.T) {
		id := start(t, "sleep")
		s, err := e.Use(ctx, id)
		if err != nil || s.At.IsZero() {
			t.Fatalf("use = %+v, %v", s, err)
		}
	})
	t.Run("images are removed when no container has them", func(t *testing.T) { suiteRemoveImage(t, ctx, e) })
	t.Run("exec", func(t *testing.T) {
		id := start(t, "sleep")
		suiteExec(t, ctx, e, id)
	})
}

// kernelStatistics compares what the daemon says of a container that waits with what the kernel does.
func kernelStatistics(t *testing.T, host string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := docker.Dial(host)
	if err != nil {
		t.Fatal(err)
	}
	id, err := e.Create(ctx, docker.Container{Name: "hf-suite-statistics", Image: dockertest.Image, Command: []string{"sleep"}, NetworkMode: "none"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(e.Remove(context.Background(), id), e.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := e.Start(ctx, id); err != nil {
		t.Fatal(err)
	}
	state, err := e.State(ctx, id)
	if err != nil || state.PID <= 0 {
		t.Fatalf("state = %+v, %v", state, err)
	}
	group, err := cgroup.Of("/sys/fs/cgroup", "/proc", state.PID, id)
	if err != nil {
		t.Skipf("the daemon's control groups cannot be read here: %v", err)
	}
	theirs, err := e.Use(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := group.Read()
	if err != nil {
		t.Fatal(err)
	}
	if ours.CPUTotalNS < theirs.CPUTotalNS || ours.MemoryMax != nil && theirs.MemoryMax != nil && *ours.MemoryMax < *theirs.MemoryMax {
		t.Errorf("the kernel counts %+v, the daemon said before %+v", ours, theirs)
	}
	for what, pair := range map[string][2]*uint64{
		"resident memory": {ours.MemoryRSS, theirs.MemoryRSS}, "cache": {ours.MemoryCache, theirs.MemoryCache}, "usage": {&ours.MemoryUsage, &theirs.MemoryUsage},
	} {
		const slack = 4 << 20 // a moment lies between the two
		if mine, other := pair[0], pair[1]; (mine == nil) != (other == nil) || mine != nil && max(*mine, *other)-min(*mine, *other) > slack {
			t.Errorf("%s: the kernel counts %+v, the daemon %+v", what, ours, theirs)
		}
	}
}

// suiteRemoveImage removes an image of its own: refused while a container has it, and no error when it is gone.
func suiteRemoveImage(t *testing.T, ctx context.Context, e *docker.Engine) {
	const ref = "heteroflow-test/removed:1"
	var image bytes.Buffer
	archive := tar.NewWriter(&image)
	if err := errors.Join(archive.WriteHeader(&tar.Header{Name: "removed/", Typeflag: tar.TypeDir, Mode: 0o755}), archive.Close(), e.Import(ctx, &image, ref, []string{`ENTRYPOINT ["/none"]`})); err != nil {
		t.Fatal(err)
	}
	imageID, err := e.ImageID(ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	id, err := e.Create(ctx, docker.Container{Name: "hf-suite-removed", Image: ref, NetworkMode: "none"})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.RemoveImage(ctx, imageID); !errors.Is(err, docker.ErrImageInUse) {
		t.Errorf("of an image that a container has: %v", err)
	}
	if err := e.Remove(ctx, id); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.RemoveImage(ctx, imageID); err != nil {
			t.Error(err)
		}
	}
	if _, err := e.ImageID(ctx, ref); !errors.Is(err, docker.ErrNotFound) {
		t.Errorf("the image is still there: %v", err)
	}
}

// suiteFlood reads a burst of output through a follower: every line once, in order.
func suiteFlood(t *testing.T, ctx context.Context, e *docker.Engine, host string) {
	const lines = 60000 // about 12 MiB in the daemon's own copy
	id, err := e.Create(ctx, docker.Container{
		Name: "hf-suite-flood", Image: dockertest.Image, Command: []string{"flood", strconv.Itoa(lines)}, NetworkMode: "none",
		LogType: "json-file", LogOptions: map[string]string{"max-file": "2", "max-size": "20m"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Remove(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
	f := startFollow(t, host, id, false, time.Time{})
	if exit := <-f.exit; exit.Code != 0 || exit.Err != "" {
		t.Errorf("exit = %+v", exit)
	}
	got := strings.Split(strings.TrimSuffix(<-f.out, "\n"), "\n")
	for n, line := range got {
		if want := fmt.Sprintf("line %07d ", n); !strings.HasPrefix(line, want) {
			t.Fatalf("line %d of %d is %.20q", n, len(got), line)
		}
	}
	if len(got) != lines {
		t.Errorf("%d lines of %d", len(got), lines)
	}
}

func suiteExec(t *testing.T, ctx context.Context, e *docker.Engine, id string) {
	entry := func(words ...string) docker.ExecSpec {
		if strings.HasPrefix(t.Name(), "TestEngine/real") {
			words = append([]string{"/hftask"}, words...)
		}
		return docker.ExecSpec{Command: words}
	}
	cases := map[string]struct {
		spec             docker.ExecSpec
		stdin            io.Reader
		wantCode         int
		wantOut, wantErr string
	}{
		"stdout":    {spec: entry("echo", "a", "b"), wantOut: "a b\n"},
		"stderr":    {spec: entry("warn", "oops"), wantErr: "oops\n"},
		"exit code": {spec: entry("exit", "5"), wantCode: 5},
		"stdin":     {spec: entry("cat"), stdin: strings.NewReader("through\n"), wantOut: "through\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code, err := e.Exec(ctx, id, c.spec, c.stdin, &out, &errOut, nil)
			if err != nil || code != c.wantCode || out.String() != c.wantOut || errOut.String() != c.wantErr {
				t.Errorf("exec = %d, %v; stdout %q, stderr %q", code, err, out.String(), errOut.String())
			}
		})
	}
	t.Run("terminal", func(t *testing.T) {
		spec := entry("echo", "tty")
		spec.TTY = true
		var out bytes.Buffer
		if code, err := e.Exec(ctx, id, spec, nil, &out, io.Discard, nil); err != nil || code != 0 || strings.TrimSpace(out.String()) != "tty" {
			t.Errorf("exec = %d, %v; %q", code, err, out.String())
		}
	})
	t.Run("given up", func(t *testing.T) {
		short, cancel := context.WithCancel(ctx)
		hold, release := io.Pipe()
		defer release.Close()
		time.AfterFunc(100*time.Millisecond, cancel)
		if _, err := e.Exec(short, id, entry("hang"), hold, io.Discard, io.Discard, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("exec: %v", err)
		}
	})
}

// waitLog does something until the container's log holds the text.
func waitLog(t *testing.T, ctx context.Context, e *docker.Engine, id, text string, do func() error) {
	t.Helper()
	body, err := e.Logs(ctx, id, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan bool, 1)
	go func() {
		var all []byte
		buf := make([]byte, 4096)
		for {
			n, err := body.Read(buf)
			if all = append(all, buf[:n]...); bytes.Contains(all, []byte(text)) {
				seen <- true
				return
			}
			if err != nil {
				seen <- false
				return
			}
		}
	}()
	defer body.Close()
	for {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		select {
		case ok := <-seen:
			if !ok {
				t.Fatalf("the log ended without %q", text)
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func TestUnreachable_IsTemporaryAndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	e := dial(t, "unix://"+filepath.Join(t.TempDir(), "none.sock"))
	_, err := e.Info(testContext(t))
	var down *docker.UnreachableError
	if !errors.As(err, &down) || !down.Temporary() || !strings.Contains(err.Error(), "systemctl start docker") {
		t.Fatalf("info: %v", err)
	}
}

func TestInfo_TooOld(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	fake.SetAPIVersion("1.38")
	if _, err := dial(t, fake.Host).Info(testContext(t)); err == nil || !strings.Contains(err.Error(), "upgrade Docker") {
		t.Fatalf("info: %v", err)
	}
}

func TestInfo_Docker1809(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	fake.SetAPIVersion("1.39")
	info, err := dial(t, fake.Host).Info(testContext(t))
	if err != nil || info.APIVersion != "1.39" {
		t.Fatalf("info = %+v, %v", info, err)
	}
}

func TestErrors_AreTheDaemonsWords(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	fake.AddImage("x")
	fake.Break(dockertest.Fault{Match: "POST /containers/create", Status: 500, Text: "no space left on device"})
	_, err := dial(t, fake.Host).Create(testContext(t), docker.Container{Name: "c", Image: "x"})
	if err == nil || err.Error() != "create container c: no space left on device" {
		t.Fatalf("create: %v", err)
	}
}

func TestPull(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	e, ctx := dial(t, fake.Host), testContext(t)
	fake.Publish("registry/app:2")
	var said []string
	if err := e.Pull(ctx, "registry/app:2", &docker.Auth{Username: "u", Password: "p"}, 0, func(s string) { said = append(said, s) }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"10 % of 10.0 MiB", "50 % of 10.0 MiB", "100 % of 10.0 MiB"}; cmp.Diff(want, said) != "" {
		t.Errorf("progress (-want +got):\n%s", cmp.Diff(want, said))
	}
	if _, err := e.ImageID(ctx, "registry/app:2"); err != nil {
		t.Error(err)
	}
	if err := e.Pull(ctx, "registry/absent:1", nil, 0, nil); err == nil || !strings.Contains(err.Error(), "manifest unknown") {
		t.Errorf("pull of an absent image: %v", err)
	}
}

func TestPull_Silence(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	fake.Break(dockertest.Fault{Match: "POST /images/create", Delay: time.Hour})
	err := dial(t, fake.Host).Pull(testContext(t), "registry/app:2", nil, 20*time.Millisecond, nil)
	var stalled *docker.StalledError
	if !errors.As(err, &stalled) || !stalled.Temporary() || !strings.Contains(err.Error(), "said nothing of it for 20ms") {
		t.Fatalf("pull: %v", err)
	}
}

func TestPull_ByDigest(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	ref := "registry/app@sha256:" + strings.Repeat("ab", 32)
	fake.Publish(ref)
	e, ctx := dial(t, fake.Host), testContext(t)
	if err := e.Pull(ctx, ref, nil, time.Minute, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Image(ctx, ref); err != nil {
		t.Error(err)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	e, ctx := dial(t, fake.Host), testContext(t)
	if err := e.Load(ctx, strings.NewReader("saved:1 saved:2")); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Image(ctx, "saved:2"); err != nil {
		t.Error(err)
	}
	if err := e.Load(ctx, strings.NewReader("broken")); err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("load of a damaged archive: %v", err)
	}
}

// What a version of the API does not know is refused, not left out.
func TestCreate_OldDaemon(t *testing.T) {
	t.Parallel()
	fake := dockertest.New(t)
	fake.AddImage("x")
	fake.SetAPIVersion("1.39")
	e, ctx := dial(t, fake.Host), testContext(t)
	if _, err := e.Create(ctx, docker.Container{Name: "c", Image: "x", CgroupNSMode: "private"}); err == nil || !strings.Contains(err.Error(), "Docker 20.10") {
		t.Errorf("cgroupns: %v", err)
	}
	if _, err := e.Create(ctx, docker.Container{Name: "c", Image: "x", MACAddress: "02:68:b3:29:da:98"}); err != nil {
		t.Fatal(err)
	}
	if got := fake.Created(); got["MacAddress"] != "02:68:b3:29:da:98" || got["NetworkingConfig"] != nil {
		t.Errorf("created with %v", got)
	}
	if _, err := e.Create(ctx, docker.Container{Name: "c", Image: "x"}); !errors.Is(err, docker.ErrNameInUse) {
		t.Errorf("a name that is in use: %v", err)
	}
}

func TestAuthFromFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.json")
	body := `{"auths":{"https://index.docker.io/v1/":{"auth":"aHViOnNlY3JldA=="},"reg.example:5000":{"auth":"bWU6cHc6eA=="},"broken":{"auth":"%"}}}`
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]*docker.Auth{
		"ubuntu:24.04":             {Username: "hub", Password: "secret", ServerAddress: "https://index.docker.io/v1/"},
		"team/app":                 {Username: "hub", Password: "secret", ServerAddress: "https://index.docker.io/v1/"},
		"reg.example:5000/app:1":   {Username: "me", Password: "pw:x", ServerAddress: "reg.example:5000"},
		"other.example/app@sha256": nil,
	} {
		got, err := docker.AuthFromFile(testContext(t), path, ref)
		if err != nil {
			t.Errorf("%s: %v", ref, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", ref, diff)
		}
	}
	if err := os.WriteFile(path, []byte(`{"auths": secret`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := docker.AuthFromFile(testContext(t), path, "x"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("damaged file: %v", err)
	}
}
