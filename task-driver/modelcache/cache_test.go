package modelcache_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/modelcache"
)

// content is n bytes that look like a model's.
func content(seed uint64, n int) []byte {
	out := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range out {
		out[i] = byte(r.Uint32())
	}
	return out
}

func checksum(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// rig is a cache in a folder of its own, and what it said.
type rig struct {
	*testing.T
	*modelcache.Cache
	dir    string
	mu     sync.Mutex
	events []string
}

func newRig(t *testing.T, change ...func(*modelcache.Options)) *rig {
	t.Helper()
	r := &rig{T: t, dir: t.TempDir()}
	r.Cache = modelcache.New(options(r.dir, change...))
	return r
}

func options(dir string, change ...func(*modelcache.Options)) modelcache.Options {
	o := modelcache.Options{
		Dir: dir, Backoff: time.Millisecond, Every: 5 * time.Millisecond, Silence: 5 * time.Second,
		Free: func(string) (int64, error) { return math.MaxInt64 / 2, nil },
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

func (r *rig) event(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, text)
}

func (r *rig) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.events, "\n")
}

func (r *rig) ensure(task, source, sum string) (modelcache.Model, error) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return r.Ensure(ctx, modelcache.Ask{TaskID: task, Source: source, Checksum: sum}, r.event)
}

// got fetches and holds what is there against what is wanted.
func (r *rig) got(task, source string, want []byte) modelcache.Model {
	r.Helper()
	m, err := r.ensure(task, source, checksum(want))
	if err != nil {
		r.Fatal(err)
	}
	body, err := os.ReadFile(m.Path)
	if err != nil || !bytes.Equal(body, want) {
		r.Fatalf("model at %s is not what was served (%v)", m.Path, err)
	}
	return m
}

// refused fetches what must not come, and says that nothing that could be used was left.
func (r *rig) refused(source, sum string, words ...string) error {
	r.Helper()
	_, err := r.ensure("t", source, sum)
	if err == nil {
		r.Fatal("it was fetched")
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			r.Errorf("the error does not say %q: %v", word, err)
		}
	}
	if left := r.models(); len(left) > 0 {
		r.Errorf("models are left: %v", left)
	}
	return err
}

// models are the names of what is complete.
func (r *rig) models() []string {
	r.Helper()
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "file-") || strings.HasPrefix(e.Name(), "tree-") {
			out = append(out, e.Name())
		}
	}
	return out
}

// files serves files by path, ranges and tags included, and counts requests and the bytes of their answers.
type files struct {
	*httptest.Server
	asked atomic.Int64
	sent  atomic.Int64
}

func serve(t testing.TB, all map[string][]byte, wrap ...func(http.Handler) http.Handler) *files {
	t.Helper()
	f := &files{}
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := all[strings.TrimPrefix(r.URL.Path, "/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("ETag", fmt.Sprintf("%q", checksum(body)[7:23]))
		http.ServeContent(w, r, "", time.Unix(1700000000, 0), bytes.NewReader(body))
	})
	for _, wr := range wrap {
		h = wr(h)
	}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.asked.Add(1)
		h.ServeHTTP(&counted{w, &f.sent}, r)
	}))
	t.Cleanup(f.Close)
	return f
}

type counted struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *counted) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return c.ResponseWriter.Write(b)
}

func (c *counted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func TestEnsure_FetchesOnceAndKeeps(t *testing.T) {
	t.Parallel()
	body := content(1, 3<<20)
	web := serve(t, map[string][]byte{"llama.gguf": body})
	r := newRig(t)
	m := r.got("a", web.URL+"/llama.gguf", body)
	if m.Name != "llama.gguf" || m.Tree {
		t.Errorf("model is %+v", m)
	}
	r.got("b", web.URL+"/llama.gguf?X-Signature=other", body)
	if n := web.asked.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	if said := r.said(); !strings.Contains(said, "Fetching model llama.gguf (3.0 MiB) from "+web.URL+"/llama.gguf") || !strings.Contains(said, "Fetched model llama.gguf (3.0 MiB) in ") {
		t.Errorf("events are:\n%s", said)
	}
	info, err := os.Stat(m.Path)
	if err != nil || info.Mode().Perm() != 0o444 {
		t.Errorf("file is %v, %v", info, err)
	}
	users, err := r.Users()
	if err != nil || len(users) != 2 {
		t.Fatalf("users are %v, %v", users, err)
	}
	if err := errors.Join(r.Release("a"), r.Release("b"), r.Release("never seen")); err != nil {
		t.Fatal(err)
	}
	if users, err := r.Users(); err != nil || len(users) != 0 {
		t.Errorf("users are %v, %v", users, err)
	}
}

// With AskSource, to know a checksum is not enough. A peer must not give it away either.
func TestEnsure_AsksTheSource(t *testing.T) {
	t.Parallel()
	body := content(90, 1000)
	web := serve(t, map[string][]byte{"m": body}, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer right" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	has := newRig(t)
	ensure := func(r *rig, task, token string) error {
		_, err := r.Ensure(context.Background(), modelcache.Ask{TaskID: task, Source: web.URL + "/m", Checksum: checksum(body), Env: map[string]string{"HETEROFLOW_MODEL_TOKEN": token}}, r.event)
		return err
	}
	if err := ensure(has, "a", "right"); err != nil {
		t.Fatal(err)
	}
	if err := ensure(has, "b", "wrong"); err != nil {
		t.Errorf("without the option: %v", err)
	}
	peer := httptest.NewServer(http.FileServer(http.Dir(has.dir)))
	t.Cleanup(peer.Close)
	r := newRig(t, func(o *modelcache.Options) { o.AskSource, o.Peers = true, []string{peer.URL} })
	for range 2 { // from a peer, then from the cache
		if err := ensure(r, "b", "wrong"); err == nil || !strings.Contains(err.Error(), "not allowed") {
			t.Errorf("a task without leave gets the model: %v", err)
		}
		if err := ensure(r, "a", "right"); err != nil {
			t.Error(err)
		}
	}
	if users, err := r.Users(); err != nil || len(users) != 1 {
		t.Errorf("users are %v, %v", users, err)
	}
}

func TestEnsure_ManyAskOneFetches(t *testing.T) {
	t.Parallel()
	body := content(2, 2<<20)
	release := make(chan struct{})
	web := serve(t, map[string][]byte{"m": body}, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.Write(body[:len(body)/2])           //nolint:errcheck // a test server
			http.NewResponseController(w).Flush() //nolint:errcheck // a test server
			<-release
			w.Write(body[len(body)/2:]) //nolint:errcheck // a test server
		})
	})
	first := newRig(t)
	second := modelcache.New(options(first.dir)) // another process of the driver
	var group sync.WaitGroup
	for i := range 20 {
		cache := first.Cache
		if i%2 == 1 {
			cache = second
		}
		group.Go(func() {
			ask := modelcache.Ask{TaskID: fmt.Sprint(i), Source: web.URL + "/m", Checksum: checksum(body)}
			if _, err := cache.Ensure(context.Background(), ask, first.event); err != nil {
				t.Error(err)
			}
		})
	}
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(first.said(), "another task fetches it: 50 %") || !strings.Contains(first.said(), "Fetching model m: 50 %"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("waiting tasks were not told how far it is:\n%s", first.said())
			break
		}
	}
	close(release)
	group.Wait()
	if n := web.asked.Load(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

func TestEnsure_GoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	body := content(3, 4<<20)
	var ranges []string
	var mu sync.Mutex
	cut := true
	web := serve(t, map[string][]byte{"m": body}, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			ranges = append(ranges, r.Header.Get("Range"))
			first := cut
			cut = false
			mu.Unlock()
			if !first {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("ETag", fmt.Sprintf("%q", checksum(body)[7:23]))
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.Write(body[:1<<20]) //nolint:errcheck // a test server
			panic(http.ErrAbortHandler)
		})
	})
	r := newRig(t)
	r.got("a", web.URL+"/m", body)
	if len(ranges) != 2 || ranges[0] != "" || !strings.HasPrefix(ranges[1], "bytes=") || ranges[1] == "bytes=0-" {
		t.Errorf("ranges asked for: %q", ranges)
	}
	if sent := web.sent.Load(); sent > int64(len(body))+1<<20 {
		t.Errorf("%d bytes were sent for a model of %d", sent, len(body))
	}
}

func TestEnsure_StopsAndGoesOn(t *testing.T) {
	t.Parallel()
	body := content(4, 2<<20)
	ctx, stop := context.WithCancel(context.Background())
	half := true
	web := serve(t, map[string][]byte{"m": body}, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !half {
				h.ServeHTTP(w, r)
				return
			}
			half = false
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.Write(body[:1<<20])                 //nolint:errcheck // a test server
			http.NewResponseController(w).Flush() //nolint:errcheck // a test server
			<-r.Context().Done()
		})
	})
	r := newRig(t)
	partial := filepath.Join(r.dir, "partial", "file-"+checksum(body)[7:], "model")
	go func() {
		for info, err := os.Stat(partial); err != nil || info.Size() < 1<<20; info, err = os.Stat(partial) {
			time.Sleep(time.Millisecond)
		}
		stop()
	}()
	ask := modelcache.Ask{TaskID: "a", Source: web.URL + "/m", Checksum: checksum(body)}
	if _, err := r.Ensure(ctx, ask, r.event); !errors.Is(err, context.Canceled) {
		t.Fatalf("stopped with %v", err)
	}
	if users, err := r.Users(); err != nil || len(users) > 0 {
		t.Errorf("a task that did not get its model is noted as a user: %v, %v", users, err)
	}
	r.got("b", web.URL+"/m", body)
	if !strings.Contains(r.said(), "50 % are there") {
		t.Errorf("events are:\n%s", r.said())
	}
	if sent := web.sent.Load(); sent > int64(len(body))+4096 {
		t.Errorf("%d bytes were sent for a model of %d", sent, len(body))
	}
}

func TestEnsure_WhatIsThereIsHeldAgainstTheChecksum(t *testing.T) {
	t.Parallel()
	body := content(5, 1<<20)
	web := serve(t, map[string][]byte{"m": body})
	for name, there := range map[string][]byte{
		"zeros after a loss of power": make([]byte, 1<<19), "whole but wrong": content(6, 1<<20), "too long": content(6, 2<<20),
		"whole": body, "a part": body[:1000],
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			dir := filepath.Join(r.dir, "partial", "file-"+checksum(body)[7:])
			if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "model"), there, 0o400), os.WriteFile(dir+".state", []byte(`{"total":`), 0o600)); err != nil {
				t.Fatal(err)
			}
			r.got("a", web.URL+"/m", body)
		})
	}
}

func TestEnsure_PeersFirst(t *testing.T) {
	t.Parallel()
	body := content(7, 1<<20)
	source := serve(t, map[string][]byte{"m": body})
	has := newRig(t)
	has.got("a", source.URL+"/m", body)
	peer := httptest.NewServer(http.FileServer(http.Dir(has.dir)))
	lying := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(content(8, 1<<20)) })) //nolint:errcheck // a test server
	boasting := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(int64(math.MaxInt64)))
	}))
	var leaked atomic.Value
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a := r.Header.Get("Authorization"); a != "" {
			leaked.Store(a)
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(func() { peer.Close(); lying.Close(); boasting.Close(); empty.Close() })
	gone := httptest.NewServer(nil)
	gone.Close()
	r := newRig(t, func(o *modelcache.Options) { o.Peers = []string{gone.URL, empty.URL + "/models/", lying.URL, peer.URL} })
	ask := modelcache.Ask{TaskID: "b", Source: source.URL + "/m", Checksum: checksum(body), Env: map[string]string{"HETEROFLOW_MODEL_TOKEN": "secret"}}
	if _, err := r.Ensure(context.Background(), ask, r.event); err != nil {
		t.Fatal(err)
	}
	if n := source.asked.Load(); n != 1 {
		t.Errorf("the source was asked %d times, want once: the peer has it", n)
	}
	if leaked.Load() != nil {
		t.Errorf("a peer got the task's token")
	}
	alone := newRig(t, func(o *modelcache.Options) { o.Peers = []string{gone.URL, empty.URL, boasting.URL, lying.URL} })
	alone.got("c", source.URL+"/m", body)
}

func manifest(all map[string][]byte) []byte {
	var b bytes.Buffer
	for name, body := range all {
		fmt.Fprintf(&b, "%s  ./%s\n", checksum(body)[7:], name)
	}
	return b.Bytes()
}

func TestEnsure_ModelOfSeveralFiles(t *testing.T) {
	t.Parallel()
	all := map[string][]byte{"config.json": []byte(`{}`), "model-00001.safetensors": content(9, 1<<20), "sub dir/tok+en=%.json": content(10, 1000), "empty": {}}
	list := manifest(all)
	served := map[string][]byte{"org/llm/SHA256SUMS": list}
	for name, body := range all {
		served["org/llm/"+name] = body
	}
	web := serve(t, served)
	r := newRig(t)
	m, err := r.ensure("a", web.URL+"/org/llm/", checksum(list))
	if err != nil {
		t.Fatal(err)
	}
	if !m.Tree || m.Name != "llm" {
		t.Errorf("model is %+v", m)
	}
	for name, want := range all {
		if body, err := os.ReadFile(filepath.Join(m.Path, name)); err != nil || !bytes.Equal(body, want) {
			t.Errorf("%s is not what was served: %v", name, err)
		}
	}
	peer := httptest.NewServer(http.FileServer(http.Dir(r.dir)))
	t.Cleanup(peer.Close)
	other := newRig(t, func(o *modelcache.Options) { o.Peers = []string{peer.URL} })
	before := web.asked.Load()
	if _, err := other.ensure("a", web.URL+"/org/llm/", checksum(list)); err != nil || web.asked.Load() != before {
		t.Errorf("%v, %d requests to the source", err, web.asked.Load()-before)
	}
	served["org/llm/config.json"] = []byte(`{"other":1}`)
	newRig(t).refused(web.URL+"/org/llm/", checksum(list), "config.json", "checksum")
}

func TestEnsure_ListsThatLeaveTheFolder(t *testing.T) {
	t.Parallel()
	sum := checksum(nil)[7:]
	for name, line := range map[string]string{
		"up": sum + "  ../../../etc/passwd", "absolute": sum + "  /etc/passwd", "inside": sum + "  a/../../b", "windows": sum + `  ..\..\x`, "drive": sum + "  c:x",
		"empty name": sum + "  ", "no digits": strings.Repeat("g", 64) + "  x", "control": sum + "  a\x1b[2J", "the folder": sum + "  .",
		"twice": sum + "  a\n" + sum + "  a", "file and folder": sum + "  a\n" + sum + "  a/b", "nothing": "\n",
	} {
		t.Run(name, func(t *testing.T) {
			list := []byte(line + "\n")
			web := serve(t, map[string][]byte{"m/SHA256SUMS": list, "m/a": {}, "m/a/b": {}, "etc/passwd": {}})
			newRig(t).refused(web.URL+"/m/", checksum(list))
		})
	}
}

func TestEnsure_FilesOfTheNode(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	body := content(11, 100000)
	outside := filepath.Join(t.TempDir(), "secret")
	err := errors.Join(os.WriteFile(filepath.Join(root, "m.gguf"), body, 0o600), os.WriteFile(outside, body, 0o600),
		os.Symlink(outside, filepath.Join(root, "link")), os.Mkdir(filepath.Join(root, "dir"), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	allow := func(o *modelcache.Options) { o.FileRoots = []string{root} }
	newRig(t, allow).got("a", "file://"+root+"/m.gguf", body)
	newRig(t, allow).got("a", root+"/m.gguf", body)
	newRig(t, allow).refused("file://"+root+"/link", checksum(body), "link")
	newRig(t, allow).refused("file://"+root+"/../"+filepath.Base(filepath.Dir(outside))+"/secret", checksum(body), "outside the folders")
	newRig(t, allow).refused(root+"/dir", checksum(body), "slash at its end")
	newRig(t, allow).refused(root+"/none", checksum(body), "not there")
	newRig(t).refused(root+"/m.gguf", checksum(body), "file_roots")
}

func TestEnsure_SourcesThatAreNone(t *testing.T) {
	t.Parallel()
	sum := checksum(nil)
	for source, word := range map[string]string{
		"": "missing", "ftp://h/x": "ftp", "https:///x": "host", "s3://bucket": "bucket", "s3://u:p@b/k": "AWS_ACCESS_KEY_ID", "file://other/x": "this node", "http://[::1": "URL",
	} {
		newRig(t).refused(source, sum, word)
	}
	for text, word := range map[string]string{"": "sha256sum", "md5:00": "sha256", "sha256:12": "64", strings.Repeat("a", 64): "sha256:"} {
		newRig(t).refused("https://h/x", text, word)
	}
}

func TestRoom_TheOneNotUsedForLongestGoes(t *testing.T) {
	t.Parallel()
	all := map[string][]byte{}
	for i := range 5 {
		all[fmt.Sprint(i)] = content(uint64(20+i), 100_000)
	}
	web := serve(t, all)
	r := newRig(t, func(o *modelcache.Options) { o.MaxBytes = 300_000 })
	key := func(i int) string { return "file-" + checksum(all[fmt.Sprint(i)])[7:] }
	get := func(task string, i int) { r.got(task, web.URL+"/"+fmt.Sprint(i), all[fmt.Sprint(i)]) }
	free := func(task string, age time.Duration, i int) {
		t.Helper()
		if err := r.Release(task); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(filepath.Join(r.dir, "uses", key(i)), at, at); err != nil {
			t.Fatal(err)
		}
	}
	get("a", 0)
	get("b", 1)
	get("c", 2)
	free("a", time.Hour, 0)
	free("b", 2*time.Hour, 1)
	get("d", 3)
	if left := r.models(); slices.Contains(left, key(1)) || !slices.Contains(left, key(0)) {
		t.Fatalf("the model used last went before the other: %v", left)
	}
	get("e", 0) // in use again
	_, err := r.ensure("f", web.URL+"/4", checksum(all["4"]))
	var passes interface{ Temporary() bool }
	if !errors.As(err, &passes) || !passes.Temporary() || !strings.Contains(err.Error(), "running tasks use 293.0 KiB") {
		t.Fatalf("a full cache says %v", err)
	}
	if left := r.models(); len(left) != 3 {
		t.Fatalf("models that are used went: %v", left)
	}
	free("c", time.Hour, 2)
	get("f", 4)
	if left, err := os.ReadDir(filepath.Join(r.dir, "trash")); err != nil || len(left) > 0 {
		t.Errorf("what was given up is still there: %v, %v", left, err)
	}
	big := content(30, 300_001)
	all["big"] = big
	if _, err := r.ensure("g", web.URL+"/big", checksum(big)); err == nil || !strings.Contains(err.Error(), "max_size") || len(r.models()) != 3 {
		t.Errorf("a model larger than the cache says %v, left are %v", err, r.models())
	}
}

// Many tasks in two processes, with room for three of six models: each gets its model or is told why not, and the cache never
// has more than it may.
func TestRoom_ManyAtOnce(t *testing.T) {
	t.Parallel()
	all := map[string][]byte{}
	for i := range 6 {
		all[fmt.Sprint(i)] = content(uint64(60+i), 100_000)
	}
	web := serve(t, all)
	limit := func(o *modelcache.Options) { o.MaxBytes = 350_000 }
	r := newRig(t, limit)
	caches := []*modelcache.Cache{r.Cache, modelcache.New(options(r.dir, limit))}
	var got atomic.Int64
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			cache := caches[worker%2]
			for round := range 12 {
				name, task := fmt.Sprint((worker+round*5)%6), fmt.Sprint(worker, "/", round)
				m, err := cache.Ensure(context.Background(), modelcache.Ask{TaskID: task, Source: web.URL + "/" + name, Checksum: checksum(all[name])}, r.event)
				var passes interface{ Temporary() bool }
				if err != nil && !(errors.As(err, &passes) && strings.Contains(err.Error(), "running tasks use")) {
					t.Error(err)
				}
				if err == nil {
					got.Add(1)
					if body, err := os.ReadFile(m.Path); err != nil || !bytes.Equal(body, all[name]) {
						t.Errorf("model of a task that uses it: %v", err)
					}
				}
				if n := len(r.models()); n > 3 {
					t.Errorf("%d models in a cache for three", n)
				}
				if err := cache.Release(task); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if got.Load() == 0 {
		t.Error("nobody got a model")
	}
	if left, err := os.ReadDir(filepath.Join(r.dir, "trash")); err != nil || len(left) > 0 {
		t.Errorf("what was given up is still there: %v, %v", left, err)
	}
}

func TestRoom_NothingGoesWhenItWouldNotDo(t *testing.T) {
	t.Parallel()
	small, big := content(40, 1000), content(41, 200_000)
	web := serve(t, map[string][]byte{"small": small, "big": big})
	room := int64(1<<30 + 10_000)
	r := newRig(t, func(o *modelcache.Options) { o.Free = func(string) (int64, error) { return room, nil } })
	r.got("a", web.URL+"/small", small)
	if err := r.Release("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ensure("b", web.URL+"/big", checksum(big)); err == nil || !strings.Contains(err.Error(), "the disk of "+r.dir) || len(r.models()) != 1 {
		t.Errorf("a full disk says %v, left are %v", err, r.models())
	}
}
