package dev

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func TestSimulated_HasEveryBrand(t *testing.T) {
	t.Parallel()
	for _, v := range accel.Vendors() {
		if !strings.Contains(string(simulated), "card \""+string(v)+"\"") {
			t.Errorf("no card of %s", v)
		}
	}
}

func TestAgentConfig(t *testing.T) {
	t.Parallel()
	m := machine{found: inventory{sim: "/d/sim.hcl", process: true}, serverURL: "http://127.0.0.1:3333", publicKey: "KEY", pluginDir: "/d/plugins", stateDir: "/d/state"}
	text := agentConfig("/d/agent", m, 1, 2, 3)
	file, diags := hclsyntax.ParseConfig(text, "agent.hcl", hcl.InitialPos)
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	var plugins []string
	for _, b := range file.Body.(*hclsyntax.Body).Blocks {
		if b.Type == "plugin" {
			plugins = append(plugins, b.Labels[0])
		}
	}
	if !slices.Equal(plugins, []string{devicePlugin, driverPlugin}) {
		t.Errorf("plugins = %v", plugins)
	}
	for _, want := range []string{
		`"fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"`, `plugin_dir`, `sim_config`, `grant_public_key`,
		"http = 1", "rpc  = 2", "serf = 3", "bootstrap_expect = 1",
	} {
		if !strings.Contains(string(text), want) && !strings.Contains(strings.Join(strings.Fields(string(text)), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("the configuration lacks %s:\n%s", want, text)
		}
	}
}

func TestInstall_ReplacesARunningProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, text := range []string{"one", "two"} {
		if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := install(from, to); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(to)
		if err != nil || string(got) != text {
			t.Errorf("installed %q, %v", got, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.new*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLock_SecondIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := acquire(path); err == nil || !strings.Contains(err.Error(), "in use by process") {
		t.Errorf("second: %v", err)
	}
	if err := first.release(); err != nil {
		t.Fatal(err)
	}
	third, err := acquire(path)
	if err != nil {
		t.Fatalf("after release: %v", err)
	}
	if err := third.release(); err != nil {
		t.Fatal(err)
	}
}

func TestListeners_TakenPortIsTold(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = listeners(t.Context(), Options{Addr: taken.Addr().String(), GatewayAddr: "127.0.0.1:0", EngineAddr: "127.0.0.1:0"})
	if err == nil || !strings.Contains(err.Error(), "-addr") {
		t.Errorf("error = %v", err)
	}
	set, err := listeners(t.Context(), Options{Addr: "127.0.0.1:0", GatewayAddr: "127.0.0.1:0", EngineAddr: taken.Addr().String()})
	if err != nil {
		t.Fatalf("the engine takes another port: %v", err)
	}
	for _, l := range []net.Listener{set.service, set.gateway, set.engine} {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestGroup_EndsInOrderAndTellsWhy(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var order []string
	part := func(name string) func(context.Context) error {
		return func(ctx context.Context) error {
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			order = append(order, name)
			return nil
		}
	}
	g := newGroup(t.Context())
	g.engine("engine", part("engine"))
	g.serve("gateway", part("gateway"))
	broken := errors.New("broken")
	g.serve("service", func(context.Context) error { return broken })
	<-g.ctx.Done()
	if err := g.stop(); !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "service: ") {
		t.Errorf("stop = %v", err)
	}
	if !slices.Equal(order, []string{"gateway", "engine"}) {
		t.Errorf("ended in order %v", order)
	}
}

func TestInventory_Words(t *testing.T) {
	t.Parallel()
	for want, found := range map[string]inventory{
		"2 cards of 1 brands, this machine's":          {cards: 2, brands: map[string]int{"nvidia": 2}},
		"1 cards of 1 brands, simulated by /x/sim.hcl": {cards: 1, brands: map[string]int{"amd": 1}, sim: "/x/sim.hcl"},
	} {
		if got := found.describe(); got != want {
			t.Errorf("describe = %q, want %q", got, want)
		}
	}
	for want, found := range map[string]inventory{
		"Docker": {docker: true},
		"Docker; plain processes are allowed too":                                       {docker: true, process: true},
		"why: tasks run as plain processes, with runtime = \"process\" in their config": {process: true, whyNot: "why"},
	} {
		if got := found.runtimes(); got != want {
			t.Errorf("runtimes = %q, want %q", got, want)
		}
	}
}

func TestMountPoint(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`36 35 98:0 /mnt1 /data/my\040dir/secrets rw,noatime master:1 - tmpfs tmpfs rw`: "/data/my dir/secrets",
		"broken": "",
	} {
		if got := mountPoint(line); got != want {
			t.Errorf("mountPoint(%q) = %q, want %q", line, got, want)
		}
	}
}

func TestAgentPorts_StayTheSame(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ports")
	rpc, serf, err := agentPorts(file)
	if err != nil || rpc == serf {
		t.Fatal(rpc, serf, err)
	}
	again, serfAgain, err := agentPorts(file)
	if err != nil || again != rpc || serfAgain != serf {
		t.Errorf("second start: %d %d %v, want %d %d", again, serfAgain, err, rpc, serf)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := agentPorts(file); err == nil {
		t.Error("a file without ports is taken")
	}
}
