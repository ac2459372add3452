//go:build linux

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

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
	root := c.Root
	if c.NoCards {
		// NVML is asked at the real root only.
		root = filepath.Join(c.Dir, "root")
		if err := os.MkdirAll(root, 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	if root != "" {
		sim += fmt.Sprintf("\n    root = %q", root)
	}
	docker := "enabled = false"
	if c.Docker != "" {
		docker = fmt.Sprintf("endpoint = %q\n      volumes_enabled = true\n      %s", c.Docker, c.Runtimes)
	}
	text := c.nomadConfig(ports)
	if c.Nomad == "" {
		text = c.engineConfig(ports[0])
	}
	key := c.NewKey("node", "node-1")
	text += fmt.Sprintf(`
plugin "heteroflow" {
  config {
    state_dir        = %q
    grant_public_key = %q
    server           = %q
    token            = %q
    docker {
      %s
    }
    process {
      enabled = true
    }
    %s
  }
}
plugin "heteroflow-device" {
  config {
    %s
    state_dir          = %q
    server             = %q
    token              = %q
    fingerprint_period = %q
    %s
  }
}
`, filepath.Join(c.Dir, "state"), c.grantKey(), c.URL, key, docker, c.Driver, sim, filepath.Join(c.Dir, "state"), c.URL, key, cmp.Or(c.Period, "1s"), c.Device)
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

// writeNomadServerConfig writes the file of Nomad's server half, which is a process of its own: killing the client then is
// killing the client, and a client that finds a leader registers at once, where one beside a server without a leader waits half
// a minute.
func (c *Cluster) writeNomadServerConfig(ports []int) {
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
	if err := os.WriteFile(c.nomadServerConfig(), []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) nomadServerConfig() string { return filepath.Join(c.Dir, "nomad-server.hcl") }

// StartNomadServer starts Nomad's server, at first or after it was killed, and waits until it leads.
func (c *Cluster) StartNomadServer() {
	c.t.Helper()
	c.NomadServer = c.run("nomad-server", nil, c.Nomad, "agent", "-config", c.nomadServerConfig())
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
  %s
  options = {
    # Probes of clouds that are not there cost seconds.
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
%s
`, filepath.Join(c.Dir, "agent"), filepath.Join(c.Dir, "plugins"), ports[6], ports[7], ports[3], c.bridgeConfig(), c.nomadConsul())
}

func (c *Cluster) bridgeConfig() string {
	if c.CNI == "" {
		return ""
	}
	return fmt.Sprintf("cni_path = %q\n  bridge_network_name = %q", c.CNI, c.Bridge)
}

func (c *Cluster) agentConfig() string { return filepath.Join(c.Dir, "agent.hcl") }

// StartAgent starts the agent, at first or after it was killed.
func (c *Cluster) StartAgent() {
	c.t.Helper()
	env := []string{}
	if c.Path != "" {
		env = append(env, "PATH="+c.Path+string(os.PathListSeparator)+os.Getenv("PATH"))
	}
	command := []string{filepath.Join(c.bin, "heteroflow"), "engine", "-config", c.agentConfig()}
	if c.Nomad != "" {
		command = []string{c.Nomad, "agent", "-config", c.agentConfig()}
	}
	command = slices.Concat(c.Enter, command)
	c.Agent = c.run("agent", env, command[0], command[1:]...)
}

// WipeClient removes all that the agent's client knew while the agent is stopped: its state and the folders of allocations.
// What runs is left running. The client of a real Nomad comes back as another node.
func (c *Cluster) WipeClient() {
	c.t.Helper()
	c.Agent.Stop()
	c.unmount()
	for _, dir := range []string{"client", "alloc"} {
		if err := os.RemoveAll(filepath.Join(c.Dir, "agent", dir)); err != nil {
			c.t.Fatal(err)
		}
	}
	c.StartAgent()
}

// endOrphans ends the programs of this cluster that outlived their parents: Nomad leaves a plugin behind when its
// agent was killed, and a task's supervisor is meant to outlive everything.
func (c *Cluster) endOrphans() {
	entries, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		c.t.Logf("list processes: %v", err)
	}
	for _, exe := range entries {
		target, err := os.Readlink(exe)
		if err != nil || !strings.HasPrefix(target, c.Dir+"/") {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(exe, "/")[2])
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			c.t.Logf("end orphan %s: %v", target, err)
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
