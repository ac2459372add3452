// Package dockertest is a Docker Engine that runs nothing: an HTTP server on a unix socket which keeps containers and
// images as data and can be told to fail, to delay and to go away. It answers what the docker package asks and no
// more; it is no model of a daemon for anything else.
package dockertest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// Engine is the fake. Its containers are scripts, by the first word of their command:
//
//	echo WORDS   prints the words to stdout and ends with 0
//	warn WORDS   prints the words to stderr and ends with 0
//	exit N       ends with N
//	sleep        runs until it gets a signal
//	stubborn     runs until SIGKILL
//	flood N      prints N numbered lines and ends with 0
//	oom          is killed for want of memory
type Engine struct {
	Host string // unix:///…

	t      testing.TB
	socket string

	mu         sync.Mutex
	server     *httptest.Server
	containers map[string]*container
	images     map[string]bool
	imageEnv   map[string][]string
	auths      []string // headers of pulls
	cdiDirs    []string
	rootDir    string
	registry   map[string]bool // images that a pull finds
	faults     []*Fault
	requests   []string
	lastBody   map[string][]byte
	runtimes   []string
	apiVersion string
	serial     int
	execs      map[string]*execution
	health     string // empty: images have no HEALTHCHECK
	loseTail   bool
}

// Fault makes requests whose method and path match go wrong.
type Fault struct {
	Match  string        // regular expression on "METHOD /path", version prefix stripped
	Status int           // answered with this status; 0 for none
	Text   string        // the daemon's message
	Cut    bool          // the connection is closed without an answer
	Delay  time.Duration // waited before anything else
	Times  int           // how often; 0 for always
	used   int
	re     *regexp.Regexp
}

type container struct {
	ID, Name string
	Image    string
	joined   bool // another's network
	Config   map[string]any
	Labels   map[string]string
	Cmd      []string
	Created  time.Time
	Started  time.Time
	Ended    time.Time
	Running  bool
	TTY      bool
	LogType  string
	Exit     int
	OOM      bool
	removed  bool
	log      []logLine
	changed  chan struct{} // closed and replaced on every change
}

type logLine struct {
	at     time.Time
	stream byte
	text   string
}

// New starts a fake that ends with the test.
func New(t testing.TB) *Engine {
	t.Helper()
	// A test's own folder may be longer than the 108 bytes of a socket's path.
	dir, err := os.MkdirTemp("", "hfd")
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{
		t: t, socket: filepath.Join(dir, "d.sock"), containers: map[string]*container{}, images: map[string]bool{}, imageEnv: map[string][]string{},
		registry: map[string]bool{}, runtimes: []string{"runc"}, apiVersion: "1.47", execs: map[string]*execution{}, lastBody: map[string][]byte{},
		rootDir: "/var/lib/docker",
	}
	e.Host = "unix://" + e.socket
	e.Up()
	t.Cleanup(func() {
		e.Down()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Up starts to listen. Containers are as they were.
func (e *Engine) Up() {
	e.t.Helper()
	listener, err := net.Listen("unix", e.socket)
	if err != nil {
		e.t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: e}}
	server.Start()
	e.mu.Lock()
	e.server = server
	e.mu.Unlock()
}

// Down cuts every connection and stops to listen.
func (e *Engine) Down() {
	e.mu.Lock()
	server := e.server
	e.server = nil
	e.mu.Unlock()
	if server != nil {
		server.CloseClientConnections()
		server.Listener.Close() //nolint:errcheck // closed once more by Close
		go server.Close()       // waits for handlers, which end with their connections
	}
}

// Break adds a fault.
func (e *Engine) Break(f Fault) {
	f.re = regexp.MustCompile(f.Match)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = append(e.faults, &f)
}

// Repair removes all faults.
func (e *Engine) Repair() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = nil
}

// AddImage puts an image on the node; Publish puts it into the registry that pulls find.
func (e *Engine) AddImage(ref string) { e.mu.Lock(); defer e.mu.Unlock(); e.images[ref] = true }

// HasImage reports whether the node has an image.
func (e *Engine) HasImage(ref string) bool { e.mu.Lock(); defer e.mu.Unlock(); return e.images[ref] }

// SetImageEnv gives an image defaults of the environment.
func (e *Engine) SetImageEnv(ref string, env ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.images[ref], e.imageEnv[ref] = true, env
}

// SetCDI makes the daemon one that resolves CDI names from these folders.
func (e *Engine) SetCDI(dirs ...string) { e.mu.Lock(); defer e.mu.Unlock(); e.cdiDirs = dirs }

// SetRootDir says where the daemon keeps its own, /var/lib/docker but for this.
func (e *Engine) SetRootDir(dir string) { e.mu.Lock(); defer e.mu.Unlock(); e.rootDir = dir }

// SetHealth is what the HEALTHCHECK of every container says: starting, healthy, unhealthy.
func (e *Engine) SetHealth(status string) { e.mu.Lock(); defer e.mu.Unlock(); e.health = status }

// Auths are the credentials that pulls came with, decoded; empty for a pull without.
func (e *Engine) Auths() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.auths...)
}

// Occupy puts a container there that has the name and has ended.
func (e *Engine) Occupy(id, name string, labels map[string]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.containers[id] = &container{ID: id, Name: name, Labels: labels, Created: time.Now(), Started: time.Now(), changed: make(chan struct{})}
}

// Publish makes an image one that a pull finds.
func (e *Engine) Publish(ref string) { e.mu.Lock(); defer e.mu.Unlock(); e.registry[ref] = true }

// SetRuntimes replaces the OCI runtimes.
func (e *Engine) SetRuntimes(names ...string) { e.mu.Lock(); defer e.mu.Unlock(); e.runtimes = names }

// SetAPIVersion replaces the highest API version the daemon speaks.
func (e *Engine) SetAPIVersion(v string) { e.mu.Lock(); defer e.mu.Unlock(); e.apiVersion = v }

// LoseTail makes the next stream of logs end without a word when its container ends.
func (e *Engine) LoseTail() { e.mu.Lock(); defer e.mu.Unlock(); e.loseTail = true }

// Requests lists "METHOD /path" of every request so far.
func (e *Engine) Requests() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.requests...)
}

// Asked reports whether a request matched.
func (e *Engine) Asked(match string) bool {
	re := regexp.MustCompile(match)
	for _, r := range e.Requests() {
		if re.MatchString(r) {
			return true
		}
	}
	return false
}

// Created returns what the last container was created with.
func (e *Engine) Created() map[string]any {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out map[string]any
	if err := json.Unmarshal(e.lastBody["create"], &out); err != nil {
		e.t.Fatalf("no container was created: %v", err)
	}
	return out
}

// Containers is the number of containers there are, running or not.
func (e *Engine) Containers() int { e.mu.Lock(); defer e.mu.Unlock(); return len(e.containers) }

// Seed puts a container there that somebody else made.
func (e *Engine) Seed(id string, labels map[string]string, created time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.containers[id] = &container{ID: id, Name: id, Labels: labels, Created: created, Running: true, changed: make(chan struct{})}
}

// Kill removes a container behind the driver's back.
func (e *Engine) Kill(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.containers[id]; c != nil {
		e.end(c, 137, false)
		c.removed = true
		delete(e.containers, id)
	}
}

func (e *Engine) end(c *container, code int, oom bool) {
	if !c.Running {
		return
	}
	c.Running, c.Exit, c.OOM, c.Ended = false, code, oom, time.Now().UTC()
	c.touch()
}

func (c *container) touch() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *container) print(stream byte, text string) {
	c.log = append(c.log, logLine{time.Now().UTC(), stream, text})
	c.touch()
}

// run begins the script of a container.
func (e *Engine) run(c *container) {
	c.Running, c.Started = true, time.Now().UTC()
	word, rest := "sleep", ""
	if len(c.Cmd) > 0 {
		word, rest = c.Cmd[0], strings.Join(c.Cmd[1:], " ")
	}
	switch word {
	case "echo":
		c.print(1, rest+"\n")
		e.end(c, 0, false)
	case "warn":
		c.print(2, rest+"\n")
		e.end(c, 0, false)
	case "exit":
		code := 0
		if _, err := fmt.Sscan(rest, &code); err != nil {
			code = 1
		}
		e.end(c, code, false)
	case "flood":
		lines := 0
		if _, err := fmt.Sscan(rest, &lines); err != nil {
			lines = 0
		}
		for n := range lines {
			c.log = append(c.log, logLine{time.Now().UTC(), 1, fmt.Sprintf("line %07d %s\n", n, strings.Repeat("x", 100))})
		}
		e.end(c, 0, false)
	case "oom":
		e.end(c, 137, true)
	}
	c.touch()
}
