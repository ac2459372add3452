package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

// heard collects the events of a node's tasks.
type heard struct {
	mu   sync.Mutex
	text []string
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.text, "\n")
}

// hear listens to the present driver of a node until the test ends.
func (r *rig) hear() *heard {
	r.t.Helper()
	h := &heard{}
	ctx, stop := context.WithCancel(r.ctx)
	d := r.Driver
	before := len(d.events.listeners)
	var listening sync.WaitGroup
	listening.Go(func() {
		err := d.Events(ctx, func(e *driverpb.DriverTaskEvent) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.text = append(h.text, fmt.Sprint(e.GetMessage(), " ", e.GetAnnotations()))
			return nil
		})
		if err != nil {
			r.t.Error(err)
		}
	})
	r.t.Cleanup(func() { stop(); listening.Wait() })
	eventually(r.t, func() bool {
		d.events.mu.Lock()
		defer d.events.mu.Unlock()
		return len(d.events.listeners) > before
	}, "events are not listened to")
	return h
}

const modelText = "weights of a model"

func modelSum(body string) string {
	sum := sha256.Sum256([]byte(body))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// modelServer serves one model to whoever has the token, if one is wanted.
func modelServer(t *testing.T, token string) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch {
		case token != "" && r.Header.Get("Authorization") != "Bearer "+token:
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/llama.gguf":
			fmt.Fprint(w, modelText)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

// withModel adds a model block to a task's config.
func withModel(config map[string]any, source, checksum, path string) map[string]any {
	m := map[string]any{"source": source, "checksum": checksum}
	if path != "" {
		m["path"] = path
	}
	config["model"] = m
	return config
}

func (r *rig) models() []string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.state, "models", "file-*"))
	if err != nil {
		r.t.Fatal(err)
	}
	return found
}

func (r *rig) users() int {
	r.t.Helper()
	s, _ := r.current()
	users, err := s.models.Users()
	if err != nil {
		r.t.Fatal(err)
	}
	return len(users)
}

func TestModel_FetchedOnceForProcesses(t *testing.T) {
	t.Parallel()
	const token = "hunter2token"
	url, asked := modelServer(t, token)
	r := newRig(t, nil)
	said := r.hear()
	var handles []*driverpb.TaskHandle
	for range 2 {
		j := r.job(withModel(shell(`cat "$HETEROFLOW_MODEL_PATH"; exec sleep 1000`), url+"/llama.gguf?sig="+token, modelSum(modelText), ""), func(c *driverpb.TaskConfig) {
			c.Env["HETEROFLOW_MODEL_TOKEN"], c.Env[envModel] = token, "/etc/passwd"
		})
		handles = append(handles, r.start(j))
	}
	if n := asked.Load(); n != 1 || r.users() != 2 {
		t.Errorf("%d requests, %d users", n, r.users())
	}
	eventually(t, func() bool { return strings.Contains(said.String(), "Fetched model llama.gguf (18 bytes)") }, "the fetch is not told")
	for _, text := range []string{said.String(), r.log.String(), string(handles[0].DriverState)} {
		if strings.Contains(text, token) {
			t.Errorf("the token is told in %s", text)
		}
	}
	// After kill -9 the task still uses it, and its exec sessions still find it.
	h := handles[0]
	h.Config.MsgpackDriverConfig = nil
	r.restart()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	out, _, res, err := r.Exec(r.ctx, h.Config.Id, []string{"/bin/sh", "-c", `cat "$HETEROFLOW_MODEL_PATH"`}, 10*time.Second)
	if err != nil || res.ExitCode != 0 || string(out) != modelText {
		t.Errorf("exec: %q, %v, %v", out, res, err)
	}
	if err := r.Destroy(r.ctx, h.Config.Id, true); err != nil {
		t.Fatal(err)
	}
	if n := r.users(); n != 1 {
		t.Errorf("%d users after one of two tasks was destroyed", n)
	}
	// The other is unknown to this driver: the sweep gives its use back.
	r.sweepNow(r.ctx, time.Now().Add(time.Hour))
	if n := r.users(); n != 0 || len(r.models()) != 1 {
		t.Errorf("%d users after the sweep, models %v", n, r.models())
	}
}

func TestModel_MountedIntoContainers(t *testing.T) {
	t.Parallel()
	url, _ := modelServer(t, "")
	r, fake := dockerRig(t, map[string]any{"volumes_enabled": true, "volumes_selinuxlabel": "Z"})
	for _, c := range []struct{ path, want string }{{"", "/models/llama.gguf"}, {"/opt/m.gguf", "/opt/m.gguf"}} {
		config := withModel(app("sleep", "1"), url+"/llama.gguf", modelSum(modelText), c.path)
		config["mount"] = []any{map[string]any{"type": "tmpfs", "target": c.want}}
		j := r.job(config)
		r.start(j)
		created := fmt.Sprint(fake.Created())
		want := filepath.Join(r.state, "models", "file-"+modelSum(modelText)[7:], "model") + ":" + c.want + ":ro"
		if !strings.Contains(created, want) && !strings.Contains(created, "Target:"+c.want) || !strings.Contains(created, envModel+"="+c.want) {
			t.Errorf("container is %s, want %s", created, want)
		}
	}
	config := app("sleep", "1")
	config["volumes"] = []string{filepath.Join(r.state, "models") + ":/x"}
	if _, _, err := r.Start(r.ctx, r.job(config).cfg); err == nil || !strings.Contains(err.Error(), "belongs to the node") {
		t.Errorf("the cache of all tasks can be mounted: %v", err)
	}
}

func TestModel_Refused(t *testing.T) {
	t.Parallel()
	url, _ := modelServer(t, "")
	r := newRig(t, nil)
	sum := modelSum(modelText)
	for name, c := range map[string]struct {
		config map[string]any
		words  string
	}{
		"gone":           {withModel(shell("true"), url+"/none", sum, ""), "mend source"},
		"other content":  {withModel(shell("true"), url+"/llama.gguf", modelSum("x"), ""), "checksum"},
		"no checksum":    {withModel(shell("true"), url+"/llama.gguf", "", ""), "sha256sum"},
		"path, process":  {withModel(shell("true"), url+"/llama.gguf", sum, "/x"), "for containers"},
		"path, relative": {withModel(map[string]any{"image": "a:1"}, url+"/llama.gguf", sum, "x"), "full path"},
		"file":           {withModel(shell("true"), "/etc/passwd", sum, ""), "file_roots"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := r.Start(r.ctx, r.taskConfig(c.config))
			if err == nil || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), "config.model") || nomadplugin.IsRecoverable(err) {
				t.Errorf("start: %v", err)
			}
		})
	}
	if r.users() != 0 || len(r.models()) != 0 {
		t.Errorf("%d users and models %v are left", r.users(), r.models())
	}
}

// What a running task uses stays, over a restart of the driver too, and what none uses makes room.
func TestModel_QuotaLeavesWhatTasksUse(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{"/a": strings.Repeat("a", 700<<10), "/b": strings.Repeat("b", 700<<10)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(bodies[r.URL.Path])))
		fmt.Fprint(w, bodies[r.URL.Path])
	}))
	t.Cleanup(s.Close)
	dir := filepath.Join(t.TempDir(), "cache")
	r := newRig(t, map[string]any{"models": map[string]any{"max_size": "1MiB", "dir": dir}})
	config := func(name string) map[string]any {
		return withModel(shell("exec sleep 1000"), s.URL+name, modelSum(bodies[name]), "")
	}
	h := r.start(r.job(config("/a")))
	r.restart()
	if err := r.Recover(r.ctx, h); err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Start(r.ctx, r.taskConfig(config("/b"))); err == nil || !strings.Contains(err.Error(), "running tasks use") || !nomadplugin.IsRecoverable(err) {
		t.Fatalf("start: %v", err)
	}
	if err := r.Destroy(r.ctx, h.Config.Id, true); err != nil {
		t.Fatal(err)
	}
	r.start(r.job(config("/b")))
	if _, err := os.Stat(filepath.Join(dir, "file-"+modelSum(bodies["/a"])[7:])); !os.IsNotExist(err) {
		t.Errorf("the model that nobody uses did not make room: %v", err)
	}
}

func TestConfig_Models(t *testing.T) {
	t.Parallel()
	for words, c := range map[string]Models{
		"models.dir":        {Dir: "x"},
		"models.max_size":   {MaxSize: "10"},
		"models.peers":      {Peers: []string{"gpu-2:9000"}},
		"models.file_roots": {FileRoots: []string{"/"}},
	} {
		if _, err := (Config{StateDir: "/s", Models: &c}).settle(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%+v gives %v", c, err)
		}
	}
	s, err := Config{StateDir: "/s"}.settle()
	if err != nil || s.cache.Dir != "/s/models" || s.cache.MaxBytes != 0 {
		t.Errorf("%+v, %v", s.cache, err)
	}
}
