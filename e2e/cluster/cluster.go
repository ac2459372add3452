// Package cluster starts a whole HeteroFlow on this machine out of the built binaries, for the end-to-end suite: an
// agent (the embedded engine or a real Nomad) with both plugins, the placement service, the gateway and, where asked,
// Consul, PostgreSQL and Docker. It asserts nothing; what must hold is in the tests.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Options say what the cluster is made of.
type Options struct {
	Nomad    string // path of a nomad binary; empty for the embedded engine
	Database string // postgres URL; empty for SQLite in the cluster's folder
	Consul   string // path of a consul binary; empty for the engine's own registry
	Docker   string // address of a Docker daemon; empty for the process runtime alone
	Sim      string // simulated cards in HCL; empty for none
	Path     string // folder put first on the agent's PATH, for stand-ins of vendor tools
	NoCards  bool   // hide the machine's own cards, so that only stand-ins are found
	Anyone   bool   // calls without a key have the admin role; otherwise every call needs one
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

	t   testing.TB
	bin string
}

// Start brings a cluster up and ends it with the test.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	c := &Cluster{Options: o, t: t, bin: Binaries(t), Dir: t.TempDir()}
	ports := freePorts(t, 8)
	c.AgentURL = fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	c.URL = fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	c.ModelURL = fmt.Sprintf("http://127.0.0.1:%d/v1", ports[2])
	t.Cleanup(c.stop)
	if o.Consul != "" {
		c.startConsul(ports[5])
	}
	if o.Nomad != "" {
		c.startNomadServer(ports)
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

// RealNomads lists the Nomad binaries on PATH: nomad and nomad-<version>, by name.
func RealNomads() map[string]string {
	found := map[string]string{}
	pattern := regexp.MustCompile(`^nomad(-[0-9.]+)?$`)
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		matches, err := filepath.Glob(filepath.Join(dir, "nomad*"))
		if err != nil {
			continue
		}
		for _, path := range matches {
			name := filepath.Base(path)
			if !pattern.MatchString(name) || found[name] != "" {
				continue
			}
			if resolved, err := exec.LookPath(path); err == nil {
				found[name] = resolved
			}
		}
	}
	return found
}

func freePorts(t testing.TB, n int) []int {
	t.Helper()
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
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
	args := []string{"gateway", "-addr", addr.Host, "-nomad", c.AgentURL, "-database", database}
	if c.Consuls != "" {
		args = append(args, "-consul", c.Consuls)
	}
	c.Gateway = c.run("gateway", nil, filepath.Join(c.bin, "heteroflow"), args...)
}

// writeAgentConfig puts the plugins in place and writes the agent's file: the same plugin blocks for both engines.
func (c *Cluster) writeAgentConfig(ports []int) {
	c.t.Helper()
	plugins := filepath.Join(c.Dir, "plugins")
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		c.t.Fatal(err)
	}
	// Nomad finds a driver by its file name, and jobs say driver = "heteroflow".
	for from, to := range map[string]string{"heteroflow-driver": "heteroflow", "heteroflow-device": "heteroflow-device"} {
		if err := copyFile(filepath.Join(c.bin, from), filepath.Join(plugins, to)); err != nil {
			c.t.Fatal(err)
		}
	}
	sim := ""
	if c.Sim != "" {
		path := filepath.Join(c.Dir, "sim.hcl")
		if err := os.WriteFile(path, []byte(c.Sim), 0o644); err != nil {
			c.t.Fatal(err)
		}
		sim = fmt.Sprintf("sim_config = %q", path)
	}
	if c.NoCards {
		// NVML is asked at the real root only.
		root := filepath.Join(c.Dir, "root")
		if err := os.MkdirAll(root, 0o755); err != nil {
			c.t.Fatal(err)
		}
		sim += fmt.Sprintf("\n    root = %q", root)
	}
	docker := "enabled = false"
	if c.Docker != "" {
		docker = fmt.Sprintf("endpoint = %q\n      volumes_enabled = true", c.Docker)
	}
	text := c.nomadConfig(ports)
	if c.Nomad == "" {
		text = c.engineConfig(ports[0])
	}
	text += fmt.Sprintf(`
plugin "heteroflow" {
  config {
    state_dir = %q
    docker {
      %s
    }
    process {
      enabled = true
    }
  }
}
plugin "heteroflow-device" {
  config {
    %s
    state_dir          = %q
    server             = %q
    token              = %q
    fingerprint_period = "1s"
  }
}
`, filepath.Join(c.Dir, "state"), docker, sim, filepath.Join(c.Dir, "state"), c.URL, c.NewKey("node", "node-1"))
	if err := os.WriteFile(c.agentConfig(), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) engineConfig(port int) string {
	consul := ""
	if c.Consuls != "" {
		consul = fmt.Sprintf("consul {\n  address = %q\n}", c.Consuls)
	}
	return fmt.Sprintf(`
addr              = "127.0.0.1:%d"
name              = "node-1"
data_dir          = %q
plugin_dir        = %q
log_level         = "debug"
cpu_total_compute = 16000
memory_total_mb   = 32768
%s
`, port, filepath.Join(c.Dir, "agent"), filepath.Join(c.Dir, "plugins"), consul)
}

// startNomadServer starts Nomad's server half as a process of its own: killing the client then is killing the client,
// and a client that finds a leader registers at once, where one beside a server without a leader waits half a minute.
func (c *Cluster) startNomadServer(ports []int) {
	c.t.Helper()
	text := fmt.Sprintf(`
name       = "server-1"
data_dir   = %q
bind_addr  = "127.0.0.1"
log_level  = "INFO"
disable_update_check = true
ports {
  http = %d
  rpc  = %d
  serf = %d
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
server {
  enabled          = true
  bootstrap_expect = 1
  raft_multiplier  = 1
}
%s
`, filepath.Join(c.Dir, "nomad-server"), ports[0], ports[3], ports[4], c.nomadConsul())
	path := filepath.Join(c.Dir, "nomad-server.hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.NomadServer = c.run("nomad-server", nil, c.Nomad, "agent", "-config", path)
	c.Eventually(time.Minute, "Nomad has a leader", func() error {
		body, err := get(c.AgentURL + "/v1/status/leader")
		if err == nil && strings.Trim(strings.TrimSpace(body), `"`) == "" {
			err = errors.New("no leader yet")
		}
		return err
	})
}

func (c *Cluster) nomadConsul() string {
	if c.Consuls == "" {
		return "consul {\n  auto_advertise   = false\n  server_auto_join = false\n  client_auto_join = false\n}"
	}
	return fmt.Sprintf("consul {\n  address = %q\n  auto_advertise   = false\n  server_auto_join = false\n  client_auto_join = false\n}", strings.TrimPrefix(c.Consuls, "http://"))
}

func (c *Cluster) nomadConfig(ports []int) string {
	return fmt.Sprintf(`
name       = "node-1"
data_dir   = %q
plugin_dir = %q
bind_addr  = "127.0.0.1"
log_level  = "DEBUG"
disable_update_check = true
ports {
  http = %d
  rpc  = %d
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
client {
  enabled           = true
  servers           = ["127.0.0.1:%d"]
  cpu_total_compute = 16000
  memory_total_mb   = 32768
  network_interface = "lo"
  options = {
    # Probes of clouds that are not there cost seconds.
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}
%s
`, filepath.Join(c.Dir, "agent"), filepath.Join(c.Dir, "plugins"), ports[6], ports[7], ports[3], c.nomadConsul())
}

func (c *Cluster) agentConfig() string { return filepath.Join(c.Dir, "agent.hcl") }

// NewKey makes a key and returns its plaintext.
func (c *Cluster) NewKey(kind, name string) string {
	c.t.Helper()
	var made struct{ Plaintext string }
	c.Eventually(30*time.Second, "a key is made", func() error {
		return c.API(http.MethodPost, "/api/v1/keys", map[string]any{"kind": kind, "name": name}, &made)
	})
	return made.Plaintext
}

// For is the same cluster, failing the given test.
func (c *Cluster) For(t testing.TB) *Cluster {
	copied := *c
	copied.t = t
	return &copied
}

// StartAgent starts the agent, at first or after it was killed.
func (c *Cluster) StartAgent() {
	c.t.Helper()
	env := []string{}
	if c.Path != "" {
		env = append(env, "PATH="+c.Path+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	if c.Nomad != "" {
		c.Agent = c.run("agent", env, c.Nomad, "agent", "-config", c.agentConfig())
	} else {
		c.Agent = c.run("agent", env, filepath.Join(c.bin, "heteroflow"), "engine", "-config", c.agentConfig())
	}
}

// stop ends everything: jobs first, so that tasks that outlive their parents end too.
func (c *Cluster) stop() {
	if c.Agent != nil && c.Agent.Alive() {
		c.StopJobs()
	}
	for _, p := range []*Process{c.Gateway, c.Server, c.Agent, c.NomadServer, c.Consuld} {
		if p != nil {
			p.Stop()
		}
	}
	c.unmount()
	if c.t.Failed() {
		for _, p := range []*Process{c.Agent, c.NomadServer, c.Server, c.Gateway, c.Consuld} {
			if p != nil {
				c.t.Logf("last output of %s:\n%s", p.Name, tail(p.Output(), 60))
			}
		}
	}
}

// unmount lets go of what Nomad's client leaves mounted in the folders of stopped allocations when it ends.
func (c *Cluster) unmount() {
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		c.t.Logf("read mounts: %v", err)
		return
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && strings.HasPrefix(fields[1], c.Dir+"/") {
			if err := syscall.Unmount(fields[1], syscall.MNT_DETACH); err != nil {
				c.t.Logf("unmount %s: %v", fields[1], err)
			}
		}
	}
}

// StopJobs stops every job of the agent and waits until no allocation runs.
func (c *Cluster) StopJobs() {
	var jobs []struct{ ID string }
	if err := c.Nomads(http.MethodGet, "/v1/jobs", nil, &jobs); err != nil {
		c.t.Logf("list jobs: %v", err)
		return
	}
	for _, j := range jobs {
		if err := c.Nomads(http.MethodDelete, "/v1/job/"+url.PathEscape(j.ID)+"?purge=true", nil, nil); err != nil {
			c.t.Logf("stop %s: %v", j.ID, err)
		}
	}
	deadline := time.Now().Add(45 * time.Second)
	for time.Now().Before(deadline) {
		var allocs []struct{ ID, ClientStatus string }
		if err := c.Nomads(http.MethodGet, "/v1/allocations", nil, &allocs); err == nil {
			running := 0
			for _, a := range allocs {
				if a.ClientStatus == "running" || a.ClientStatus == "pending" {
					running++
				}
			}
			if running == 0 {
				return
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.t.Logf("allocations still run after all jobs were stopped")
}

// API calls the placement service's own API as the admin.
func (c *Cluster) API(method, path string, in, out any) error {
	return call(method, c.URL+path, c.AdminKey, in, out)
}

// Nomads calls Nomad's API past the placement service.
func (c *Cluster) Nomads(method, path string, in, out any) error {
	return call(method, c.AgentURL+path, "", in, out)
}

// CLI runs a command line tool against the placement service and returns what it printed and its exit code.
func (c *Cluster) CLI(tool string, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	if tool == "heteroflow" {
		tool = filepath.Join(c.bin, "heteroflow")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, args...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+c.URL, "NOMAD_TOKEN="+c.AdminKey, "HETEROFLOW_ADDR="+c.URL, "HETEROFLOW_TOKEN="+c.AdminKey, "NOMAD_CLI_NO_COLOR=1")
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("%s %s: %v", tool, strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Eventually waits until what is said holds, and fails the test with the last reason otherwise.
func (c *Cluster) Eventually(timeout time.Duration, what string, check func() error) {
	c.t.Helper()
	Eventually(c.t, timeout, what, check)
}

// Eventually polls check until it returns nil or the time is over.
func Eventually(t testing.TB, timeout time.Duration, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("within %s: %s: %v", timeout, what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func call(method, url, token string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = strings.NewReader(string(raw))
	}
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %d: %s", method, url, resp.StatusCode, strings.TrimSpace(string(raw)))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

func get(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s: %d: %s", url, resp.StatusCode, raw)
	}
	return string(raw), err
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

func tail(s string, lines int) string {
	all := strings.Split(s, "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
