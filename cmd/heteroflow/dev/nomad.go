package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/hashicorp/nomad/api"
	"github.com/zclconf/go-cty/cty"

	"github.com/heteroflow/heteroflow/internal/clock"
)

// nomadEngine is a Nomad agent that is server and client at once, over a data folder, so that jobs outlive it.
type nomadEngine struct {
	path    string
	config  string
	logFile string
	keep    bool
	client  *api.Client
	addr    string
}

// patience is how long an agent may take to start, and its tasks to stop.
const patience = 90 * time.Second

func newNomad(o Options, m machine, listener net.Listener) (engine, error) {
	dir := filepath.Join(o.home, "agent")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make Nomad's data folder: %w", err)
	}
	port := listener.Addr().(*net.TCPAddr).Port // listeners opens TCP only
	rpc, serf, err := agentPorts(filepath.Join(o.home, "ports"))
	if err = errors.Join(err, listener.Close()); err != nil { // the agent opens the port itself
		return nil, fmt.Errorf("choose Nomad's ports: %w", err)
	}
	e := &nomadEngine{
		path: o.NomadPath, keep: o.Keep, config: filepath.Join(o.home, "agent.hcl"), logFile: filepath.Join(o.home, "agent.log"),
		addr: fmt.Sprintf("http://127.0.0.1:%d", port),
	}
	if err := os.WriteFile(e.config, agentConfig(dir, m, port, rpc, serf), 0o600); err != nil {
		return nil, fmt.Errorf("write Nomad's configuration: %w", err)
	}
	e.client, err = api.NewClient(&api.Config{Address: e.addr})
	return e, err
}

// agentPorts gives the ports of Nomad's own traffic: those of the first start, since the server knows itself by its
// address and would otherwise look for the one it was before.
func agentPorts(file string) (rpc, serf int, err error) {
	if text, err := os.ReadFile(file); err == nil {
		if _, err := fmt.Sscan(string(text), &rpc, &serf); err != nil {
			return 0, 0, fmt.Errorf("%s does not hold two ports: %w", file, err)
		}
		return rpc, serf, nil
	}
	var open [2]net.Listener
	for i := range open {
		if open[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return 0, 0, err
		}
		defer open[i].Close()
	}
	rpc, serf = open[0].Addr().(*net.TCPAddr).Port, open[1].Addr().(*net.TCPAddr).Port
	return rpc, serf, os.WriteFile(file, fmt.Appendln(nil, rpc, serf), 0o600)
}

// agentConfig writes the agent's configuration. The probes of clouds are denied: each waits seconds for an answer
// that does not come.
func agentConfig(dir string, m machine, http, rpc, serf int) []byte {
	file := hclwrite.NewEmptyFile()
	root := file.Body()
	text := func(b *hclwrite.Body, pairs ...string) {
		for i := 0; i+1 < len(pairs); i += 2 {
			b.SetAttributeValue(pairs[i], cty.StringVal(pairs[i+1]))
		}
	}
	text(root, "name", "heteroflow-dev", "bind_addr", "127.0.0.1", "data_dir", dir, "plugin_dir", m.pluginDir, "log_level", "INFO")
	root.SetAttributeValue("disable_update_check", cty.True)
	text(root.AppendNewBlock("advertise", nil).Body(), "http", "127.0.0.1", "rpc", "127.0.0.1", "serf", "127.0.0.1")
	ports := root.AppendNewBlock("ports", nil).Body()
	for name, port := range map[string]int{"http": http, "rpc": rpc, "serf": serf} {
		ports.SetAttributeValue(name, cty.NumberIntVal(int64(port)))
	}
	server := root.AppendNewBlock("server", nil).Body()
	server.SetAttributeValue("enabled", cty.True)
	server.SetAttributeValue("bootstrap_expect", cty.NumberIntVal(1))
	c := root.AppendNewBlock("client", nil).Body()
	c.SetAttributeValue("enabled", cty.True)
	c.SetAttributeValue("network_interface", cty.StringVal("lo")) // ports of tasks are for this machine too
	c.SetAttributeValue("servers", cty.ListVal([]cty.Value{cty.StringVal(fmt.Sprintf("127.0.0.1:%d", rpc))}))
	c.SetAttributeValue("options", cty.ObjectVal(map[string]cty.Value{
		"fingerprint.denylist": cty.StringVal("env_aws,env_gce,env_azure,env_digitalocean"),
	}))
	// All users of the placement service come from its address.
	root.AppendNewBlock("limits", nil).Body().SetAttributeValue("http_max_conns_per_client", cty.NumberIntVal(1000))
	consul := root.AppendNewBlock("consul", nil).Body()
	for _, name := range []string{"auto_advertise", "server_auto_join", "client_auto_join"} {
		consul.SetAttributeValue(name, cty.False)
	}
	plugin(root, devicePlugin, m.deviceConfig())
	plugin(root, driverPlugin, m.driverConfig())
	return file.Bytes()
}

func plugin(root *hclwrite.Body, name string, config map[string]any) {
	body := root.AppendNewBlock("plugin", []string{name}).Body().AppendNewBlock("config", nil).Body()
	for key, value := range config {
		switch v := value.(type) {
		case string:
			body.SetAttributeValue(key, cty.StringVal(v))
		case map[string]any:
			inner := body.AppendNewBlock(key, nil).Body()
			for k, on := range v {
				inner.SetAttributeValue(k, cty.BoolVal(on == true))
			}
		}
	}
}

func (e *nomadEngine) name() string { return "Nomad, " + e.path }

func (e *nomadEngine) run(ctx context.Context, ready func(string)) (err error) {
	log, err := os.OpenFile(e.logFile, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open Nomad's log: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	cmd := exec.Command(e.path, "agent", "-config", e.config) // ended below, after its tasks
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = ownGroup() // Ctrl-C on the terminal is for this process, which ends the agent in order
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start Nomad: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := os.WriteFile(pidFile(e.config), fmt.Append(nil, cmd.Process.Pid), 0o600); err != nil {
		return errors.Join(fmt.Errorf("note Nomad's process: %w", err), e.end(cmd, ended))
	}
	if err := e.await(ctx, ended); err != nil {
		return errors.Join(err, e.end(cmd, ended))
	}
	ready(e.addr)
	select {
	case err := <-ended:
		return fmt.Errorf("the agent ended by itself (%w): see %s", err, e.logFile)
	case <-ctx.Done():
	}
	if e.keep {
		return e.end(cmd, ended)
	}
	return errors.Join(e.stopTasks(), e.end(cmd, ended), unmountBelow(filepath.Dir(e.config)))
}

// await waits until the agent leads and its node takes tasks, which the last stop may have forbidden.
func (e *nomadEngine) await(ctx context.Context, ended <-chan error) error {
	deadline, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last error
	for {
		select {
		case err := <-ended:
			return fmt.Errorf("the agent ended at once (%w): see %s", err, e.logFile)
		case <-deadline.Done():
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("the agent is not ready after %s (%w): see %s", patience, last, e.logFile)
		default:
		}
		if last = e.openNode(deadline); last == nil {
			return nil
		}
		clock.Sleep(deadline, clock.System(), 200*time.Millisecond)
	}
}

func (e *nomadEngine) node(ctx context.Context) (*api.NodeListStub, error) {
	nodes, _, err := e.client.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.Status == api.NodeStatusReady || n.Drain {
			return n, nil
		}
	}
	return nil, errors.New("the node is not registered yet")
}

func (e *nomadEngine) openNode(ctx context.Context) error {
	node, err := e.node(ctx)
	if err != nil {
		return err
	}
	if node.Status != api.NodeStatusReady {
		return fmt.Errorf("the node is %s", node.Status)
	}
	if node.SchedulingEligibility == api.NodeSchedulingEligible {
		return nil
	}
	_, err = e.client.Nodes().UpdateDrain(node.ID, nil, true, (&api.WriteOptions{}).WithContext(ctx))
	return err
}

// stopTasks drains the node, which ends every task and leaves the jobs waiting for the next start.
func (e *nomadEngine) stopTasks() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	node, err := e.node(ctx)
	if err != nil {
		return fmt.Errorf("stop tasks: %w", err)
	}
	const force = -1 * time.Second // Nomad's word for at once
	if _, err := e.client.Nodes().UpdateDrain(node.ID, &api.DrainSpec{Deadline: force}, false, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		return fmt.Errorf("stop tasks: %w", err)
	}
	for {
		allocs, _, err := e.client.Nodes().Allocations(node.ID, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return fmt.Errorf("stop tasks: %w", err)
		}
		left := 0
		for _, a := range allocs {
			if !a.ClientTerminalStatus() {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		clock.Sleep(ctx, clock.System(), 200*time.Millisecond)
	}
}

// end ends the agent: asked first, then by force.
func (e *nomadEngine) end(cmd *exec.Cmd, ended chan error) error {
	if err := cmd.Process.Signal(syscall.SIGTERM); errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	select {
	case <-ended: // a signal is how it ends; its exit code says no more
		return nil
	case <-time.After(30 * time.Second):
	}
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end Nomad, process %d: %w", cmd.Process.Pid, err)
	}
	<-ended
	return nil
}
