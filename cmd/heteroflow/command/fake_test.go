package command

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

// fake is a placement service that answers from a table and remembers what it was asked.
type fake struct {
	*httptest.Server
	mu      sync.Mutex
	answers map[string]answer // by "METHOD /path"
	asked   []asked
}

type answer struct {
	status int
	body   string
}

type asked struct {
	method, path, token string
	query               map[string][]string
	body                []byte
}

func newFake(t *testing.T, answers map[string]any) *fake {
	t.Helper()
	f := &fake{answers: map[string]answer{}}
	for key, value := range answers {
		f.answers[key] = toAnswer(t, value)
	}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func toAnswer(t *testing.T, value any) answer {
	t.Helper()
	switch v := value.(type) {
	case answer:
		return v
	case string:
		return answer{http.StatusOK, v}
	}
	body, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return answer{http.StatusOK, string(body)}
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer
	if _, err := body.ReadFrom(r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token == "" {
		token = r.Header.Get("X-Nomad-Token")
	}
	f.mu.Lock()
	f.asked = append(f.asked, asked{r.Method, r.URL.EscapedPath(), token, r.URL.Query(), body.Bytes()})
	found, ok := f.answers[r.Method+" "+r.URL.EscapedPath()]
	f.mu.Unlock()
	if !ok {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	if strings.HasPrefix(found.body, "{") || strings.HasPrefix(found.body, "[") {
		w.Header().Set("Content-Type", "application/json")
		if found.status >= http.StatusBadRequest {
			w.Header().Set("Content-Type", "application/problem+json")
		}
	}
	w.WriteHeader(found.status)
	if _, err := w.Write([]byte(found.body)); err != nil {
		panic(err)
	}
}

// calls lists what was asked, as "METHOD /path".
func (f *fake) calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]string, len(f.asked))
	for i, a := range f.asked {
		out[i] = a.method + " " + a.path
	}
	return out
}

func (f *fake) last(t *testing.T, call string) asked {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range slices.Backward(f.asked) {
		if a.method+" "+a.path == call {
			return a
		}
	}
	t.Fatalf("%s was not called", call)
	return asked{}
}

// result is what a command did.
type result struct {
	code        int
	out, errors string
}

// call runs a command line against the fake.
func (f *fake) call(t *testing.T, env map[string]string, args ...string) result {
	t.Helper()
	vars := map[string]string{"HETEROFLOW_ADDR": f.URL}
	for name, value := range env {
		vars[name] = value
	}
	return call(t, vars, args...)
}

func call(t *testing.T, vars map[string]string, args ...string) result {
	t.Helper()
	var out, errors bytes.Buffer
	code := Run(context.Background(), args, Env{
		Stdout: &out, Stderr: &errors, Getenv: func(name string) string { return vars[name] },
		Environ: func() (list []string) {
			for name, value := range vars {
				list = append(list, name+"="+value)
			}
			return list
		},
	})
	return result{code, out.String(), errors.String()}
}

var (
	times = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ: `)
	ports = regexp.MustCompile(`127\.0\.0\.1:\d+`)
)

// golden compares a result with testdata/<name>.golden.
func golden(t *testing.T, name string, r result) {
	t.Helper()
	got := fmt.Sprintf("exit %d\n--- stdout\n%s--- stderr\n%s", r.code, r.out, r.errors)
	got = ports.ReplaceAllString(times.ReplaceAllString(got, "TIME: "), "127.0.0.1:PORT")
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
