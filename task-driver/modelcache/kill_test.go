//go:build unix

package modelcache_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/heteroflow/heteroflow/task-driver/modelcache"
)

// TestMain lets the test binary be a process that fetches, to be killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 5 && os.Args[1] == "fetch" {
		os.Exit(fetchAndSay(os.Args[2], os.Args[3], os.Args[4]))
	}
	os.Exit(m.Run())
}

func fetchAndSay(dir, source, sum string) int {
	c := modelcache.New(options(dir, func(o *modelcache.Options) { o.MaxBytes = 3 << 20 }))
	fmt.Println("begun")
	ask := modelcache.Ask{TaskID: fmt.Sprint("pid", os.Getpid()), Source: source, Checksum: sum}
	if _, err := c.Ensure(context.Background(), ask, func(string) {}); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// A process is killed at any point of a fetch, of one file or of several, with another model to be given up for it. The
// next goes on; a model that is there is always whole.
func TestKill_AtAnyPoint(t *testing.T) {
	t.Parallel()
	single := content(80, 2<<20)
	all := map[string][]byte{"config.json": []byte("{}"), "a.bin": content(81, 1<<20), "b/c.bin": content(82, 1<<20)}
	list := manifest(all)
	served := map[string][]byte{"m": single, "tree/SHA256SUMS": list}
	for name, body := range all {
		served["tree/"+name] = body
	}
	idle := content(83, 1<<20)
	served["idle"] = idle
	var resumed atomic.Int64
	web := serve(t, served, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" {
				resumed.Add(1)
			}
			h.ServeHTTP(&throttled{w}, r)
		})
	})
	defer func() {
		if resumed.Load() == 0 {
			t.Error("no kill hit the middle of a file")
		}
	}()
	for i := range 24 {
		source, sum := web.URL+"/m", checksum(single)
		if i%2 == 1 {
			source, sum = web.URL+"/tree/", checksum(list)
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r := newRig(t, func(o *modelcache.Options) { o.MaxBytes = 3 << 20 })
			r.got("idle", web.URL+"/idle", idle)
			if err := r.Release("idle"); err != nil {
				t.Fatal(err)
			}
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for kill := range 3 {
				killed(t, r.dir, source, sum, time.Duration(random.IntN(25_000*(kill+1)))*time.Microsecond)
				whole(t, r.dir, served)
			}
			m, err := r.ensure("last", source, sum)
			if err != nil {
				t.Fatal(err)
			}
			whole(t, r.dir, served)
			if _, err := os.Stat(m.Path); err != nil {
				t.Error(err)
			}
			left, err := os.ReadDir(filepath.Join(r.dir, "partial"))
			for _, e := range left {
				if e.IsDir() {
					t.Errorf("%s is left of the fetch", e.Name())
				}
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		})
	}
}

// throttled sends slowly enough to be killed in between.
type throttled struct{ http.ResponseWriter }

func (w *throttled) Write(b []byte) (int, error) {
	time.Sleep(time.Millisecond)
	n, err := w.ResponseWriter.Write(b)
	return n, errors.Join(err, http.NewResponseController(w.ResponseWriter).Flush())
}

// killed runs a process that fetches and kills it after a while.
func killed(t *testing.T, dir, source, sum string, after time.Duration) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "fetch", dir, source, sum)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || line != "begun\n" {
		t.Fatalf("%q, %v", line, err)
	}
	time.Sleep(after) // where it is killed is left to chance
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	if rest, err := lines.ReadString(0); rest != "" {
		t.Errorf("the process says %q (%v)", rest, err)
	}
	_ = cmd.Wait()
}

// whole says that every model that is there is what it is called.
func whole(t *testing.T, dir string, served map[string][]byte) {
	t.Helper()
	for _, key := range (&rig{T: t, dir: dir}).models() {
		if sum, ok := strings.CutPrefix(key, "file-"); ok {
			if body, err := os.ReadFile(filepath.Join(dir, key, "model")); err != nil || checksum(body) != "sha256:"+sum {
				t.Errorf("%s is not whole: %v", key, err)
			}
			continue
		}
		for name, want := range served {
			if rel, ok := strings.CutPrefix(name, "tree/"); ok {
				if body, err := os.ReadFile(filepath.Join(dir, key, rel)); err != nil || string(body) != string(want) {
					t.Errorf("%s of %s is not whole: %v", rel, key, err)
				}
			}
		}
	}
}
