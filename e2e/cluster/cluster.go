//go:build linux

// Package cluster starts a whole HeteroFlow on this machine out of the built binaries, for the end-to-end suite: an
// agent (the embedded engine or a real Nomad) with both plugins, the placement service, the gateway and, where asked,
// Consul, PostgreSQL and Docker. It asserts nothing; what must hold is in the tests.
package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Options say what the cluster is made of.
type Options struct {
	Nomad    string   // path of a nomad binary; empty for the embedded engine
	Database string   // postgres URL; empty for SQLite in the cluster's folder
	Consul   string   // path of a consul binary; empty for the engine's own registry
	Docker   string   // address of a Docker daemon; empty for the process runtime alone
	Sim      string   // simulated cards in HCL; empty for none
	Path     string   // folder put first on the agent's PATH, for stand-ins of vendor tools
	NoCards  bool     // hide the machine's own cards, so that only stand-ins are found
	Root     string   // folder with the /proc and /sys that the device plugin sees; empty for the machine's own
	Device   string   // further lines of the device plugin's config
	Driver   string   // further lines of the driver's config
	Runtimes string   // lines of the driver's docker block
	Enter    []string // a command that runs the agent elsewhere, such as in a mount namespace of its own
	Period   string   // of the fingerprint; a second when empty
	CNI      string   // folder of CNI plugins, for groups with a network of their own; empty for Nomad's default
	Bridge   string   // the bridge to which Nomad connects those; empty for Nomad's default
	Anyone   bool     // calls without a key have the admin role; otherwise every call needs one
}

// Cluster is a running HeteroFlow. Addresses are URLs.
type Cluster struct {
	Options
	Dir     string
	Agent   *Process // Nomad's client, or the embedded engine
	Server  *Process // placement service
	Gateway *Process
	Consuld *Process
	// NomadServer is Nomad's server; nil with the embedded engine.
	NomadServer *Process
	AgentURL    string // Nomad's own API, past the placement service
	URL         string // placement service
	ModelURL    string // gateway, with /v1
	Consuls     string // Consul's URL
	AdminKey    string

	t       testing.TB
	bin     string
	started *[]*Process // every one, also those that a test started again; shared by the copies that For makes
}

// Start brings a cluster up and ends it with the test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	c := &Cluster{Options: o, t: t, bin: Binaries(t), Dir: t.TempDir(), started: &[]*Process{}}
	ports := freePorts(t, 8)
	c.AgentURL = fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	c.URL = fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	c.ModelURL = fmt.Sprintf("http://127.0.0.1:%d/v1", ports[2])
	t.Cleanup(c.stop)
	if o.Consul != "" {
		c.startConsul(ports[5])
	}
	if o.Nomad != "" {
		c.writeNomadServerConfig(ports)
		c.StartNomadServer()
	}
	c.startServer()
	c.startGateway()
	c.writeAgentConfig(ports)
	c.StartAgent()
	return c
}

// Binaries is the folder with the built binaries: HETEROFLOW_BIN, which `make e2e` sets.
func Binaries(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("HETEROFLOW_BIN")
	if dir == "" {
		t.Fatal("HETEROFLOW_BIN is not set: run `make e2e`, which builds the binaries first")
	}
	return dir
}

// handedOut are the ports that clusters of this process have, or had: one that starts beside another must not be given
// a port that the other has not opened yet.
var handedOut = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

func freePorts(t testing.TB, n int) []int {
	t.Helper()
	handedOut.Lock()
	defer handedOut.Unlock()
	ports := make([]int, 0, n)
	for len(ports) < n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		if !handedOut.ports[port] {
			handedOut.ports[port] = true
			ports = append(ports, port)
		}
	}
	return ports
}

func (c *Cluster) startConsul(port int) {
	c.t.Helper()
	free := freePorts(c.t, 4)
	config := map[string]any{
		"server": true, "bootstrap_expect": 1, "data_dir": filepath.Join(c.Dir, "consul"), "bind_addr": "127.0.0.1", "client_addr": "127.0.0.1",
		"node_name": "consul-e2e", "disable_update_check": true, "log_level": "WARN",
		"ports": map[string]int{"http": port, "dns": -1, "server": free[0], "serf_lan": free[1], "serf_wan": -1, "grpc": -1},
	}
	body, err := json.Marshal(config)
	if err != nil {
		c.t.Fatal(err)
	}
	path := filepath.Join(c.Dir, "consul.json")
	if err := os.WriteFile(path, body, 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.Consuls = fmt.Sprintf("http://127.0.0.1:%d", port)
	c.Consuld = c.run("consul", nil, c.Consul, "agent", "-config-file", path)
	c.Eventually(time.Minute, "Consul has a leader", func() error {
		body, err := get(c.Consuls + "/v1/status/leader")
		if err == nil && strings.Trim(strings.TrimSpace(body), `"`) == "" {
			err = errors.New("no leader yet")
		}
		return err
	})
}

var keyPattern = regexp.MustCompile(`hf-admin-[A-Za-z0-9_-]{20,}`)

// startServer starts the placement service. At its first start it prints the admin key, once.
func (c *Cluster) startServer() {
	c.t.Helper()
	c.StartServer()
	c.Eventually(time.Minute, "the placement service answers", func() error {
		_, err := get(c.URL + "/health")
		return err
	})
	c.Eventually(10*time.Second, "the admin key is printed", func() error {
		c.AdminKey = keyPattern.FindString(c.Server.Output())
		if c.AdminKey == "" {
			return errors.New("no key in the output")
		}
		return nil
	})
}

// StartServer starts the placement service again after it was killed.
func (c *Cluster) StartServer() {
	c.t.Helper()
	database := c.Database
	if database == "" {
		database = "sqlite://" + filepath.Join(c.Dir, "server.db")
	}
	args := []string{"server", "-addr", strings.TrimPrefix(c.URL, "http://"), "-nomad", c.AgentURL, "-database", database}
	if c.Consuls != "" {
		args = append(args, "-consul", c.Consuls)
	}
	if c.Anyone {
		args = append(args, "-anonymous", "admin")
	}
	c.Server = c.run("server", nil, filepath.Join(c.bin, "heteroflow"), args...)
}

func (c *Cluster) startGateway() {
	c.t.Helper()
	database := c.Database
	if database == "" {
		database = "sqlite://" + filepath.Join(c.Dir, "server.db")
	}
	addr, err := url.Parse(c.ModelURL)
	if err != nil {
		c.t.Fatal(err)
	}
	config := filepath.Join(c.Dir, "gateway.hcl") // what is scaled to zero is woken by way of the placement service
	if err := os.WriteFile(config, fmt.Appendf(nil, "hold {\n  wake  = %q\n  token = %q\n}\n", c.URL, c.AdminKey), 0o600); err != nil {
		c.t.Fatal(err)
	}
	args := []string{"gateway", "-config", config, "-addr", addr.Host, "-nomad", c.AgentURL, "-database", database}
	if c.Consuls != "" {
		args = append(args, "-consul", c.Consuls)
	}
	c.Gateway = c.run("gateway", nil, filepath.Join(c.bin, "heteroflow"), args...)
}

// NewKey makes a key and returns its plaintext.
func (c *Cluster) NewKey(kind, name string) string {
	c.t.Helper()
	var made struct{ Plaintext string }
	c.Eventually(30*time.Second, "a key is made", func() error {
		return c.API(http.MethodPost, "/api/v1/keys", map[string]any{"kind": kind, "name": name}, &made)
	})
	return made.Plaintext
}

// grantKey is the key that the placement service's grants are checked with, as an administrator reads it.
func (c *Cluster) grantKey() string {
	c.t.Helper()
	var info struct {
		PublicKey string `json:"public_key"`
	}
	c.Eventually(30*time.Second, "the placement service tells the key of its grants", func() error {
		return c.API(http.MethodGet, "/api/v1/info", nil, &info)
	})
	return info.PublicKey
}

// ReplacePlugin puts another build in the place of a plugin, as a package manager does: what runs keeps the file that it
// was started from.
func (c *Cluster) ReplacePlugin(file, program string) {
	c.t.Helper()
	path := filepath.Join(c.Dir, "plugins", file)
	next := filepath.Join(c.Dir, file+".next")
	if err := copyFile(program, next); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		c.t.Fatal(err)
	}
}

// For is the same cluster, failing the given test.
func (c *Cluster) For(t testing.TB) *Cluster {
	copied := *c
	copied.t = t
	return &copied
}

// stop ends everything: jobs first, so that tasks that outlive their parents end too.
func (c *Cluster) stop() {
	agentRuns := slices.ContainsFunc(*c.started, func(p *Process) bool { return p.Name == "agent" && p.Alive() })
	if agentRuns {
		c.StopJobs()
	}
	for _, p := range slices.Backward(*c.started) {
		p.Stop()
	}
	c.endOrphans()
	c.unmount()
	if c.t.Failed() {
		for _, p := range *c.started {
			c.t.Logf("last output of %s:\n%s", p.Name, tail(p.Output(), 60))
			c.keep(p)
		}
	}
}

// keep writes the whole output of a process into the folder HETEROFLOW_E2E_LOGS, where one is named.
func (c *Cluster) keep(p *Process) {
	dir := os.Getenv("HETEROFLOW_E2E_LOGS")
	if dir == "" {
		return
	}
	name := strings.ReplaceAll(c.t.Name(), "/", "_") + fmt.Sprintf("-%s-%d.log", p.Name, p.PID())
	if err := os.WriteFile(filepath.Join(dir, name), []byte(p.Output()), 0o644); err != nil {
		c.t.Logf("keep the output of %s: %v", p.Name, err)
	}
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
