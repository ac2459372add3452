// Package dev runs all of HeteroFlow on one machine, for trying and for development: an engine (the embedded one or
// a Nomad on PATH) with the two plugins, the placement service and the gateway, on one database file. Production is
// a Nomad cluster with the parts started one by one; nothing of that belongs here.
package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/gateway/server"
	"github.com/heteroflow/heteroflow/internal/auth"
	"github.com/heteroflow/heteroflow/internal/clock"
	placement "github.com/heteroflow/heteroflow/placement-service/server"
)

// Engines.
const (
	Auto     = "auto"     // a Nomad on PATH when there is one, else the embedded engine
	Embedded = "embedded" // inside this process
	Nomad    = "nomad"    // a Nomad agent that is started and ended
)

// Options say how the machine is put together.
type Options struct {
	Engine      string
	NomadPath   string // the nomad to start; found on PATH when empty
	DataDir     string // everything that is kept
	BinDir      string // where heteroflow-device and heteroflow-driver are
	Sim         string // file of simulated cards; empty: the machine's own cards, or simulated ones when it has none
	Addr        string // of the placement service
	GatewayAddr string
	EngineAddr  string // of the engine's API; its port is chosen when it is taken
	DatabaseURL string // a file in DataDir when empty
	ConsulAddr  string
	ConsulToken string
	Process     bool // switch the process runtime on although Docker is there
	Keep        bool // leave tasks running at the end
	LogLevel    hclog.Level
	Stdout      io.Writer
	Stderr      io.Writer

	home string // where the engine that was chosen keeps what is its own
}

// log makes the log of one part, with a level of its own.
func (o Options) log(part string) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Name: part, Level: o.LogLevel, Output: o.Stderr})
}

// An engine answers Nomad's API and runs tasks on this machine.
type engine interface {
	name() string
	// run runs until ctx ends, and then stops the tasks unless they are to be kept. Ready is called once, with the
	// address of the API.
	run(ctx context.Context, ready func(addr string)) error
}

// Run starts everything, says where it is, and runs until ctx ends. What was started has ended when it returns.
func Run(ctx context.Context, o Options) (err error) {
	if err := supported(); err != nil {
		return err
	}
	lock, err := prepare(&o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	if o.Engine == Nomad {
		if err := endLeftover(ctx, filepath.Join(o.home, "agent.hcl")); err != nil {
			return err
		}
	}
	found, err := look(ctx, o)
	if err != nil {
		return err
	}
	listen, err := listeners(ctx, o)
	if err != nil {
		return err
	}
	g := newGroup(ctx)
	serviceLog, engineLog := o.log("service"), o.log("engine")
	serviceLog.SetLevel(hclog.Error) // it warns that there is no Nomad, which is still to be started
	g.serve("placement service", func(ctx context.Context) error {
		return placement.Run(ctx, placement.Config{
			DatabaseURL: o.DatabaseURL, NomadAddr: "http://" + listen.engine.Addr().String(), ConsulAddr: o.ConsulAddr, ConsulToken: o.ConsulToken,
			Anonymous: auth.RoleAdmin, FirstKey: o.keepKey, Listener: listen.service, Log: serviceLog,
		})
	})
	serviceURL := "http://" + listen.service.Addr().String()
	key, err := publicKey(g.ctx, serviceURL)
	if err != nil {
		return errors.Join(fmt.Errorf("start the placement service: %w", err), listen.engine.Close(), listen.gateway.Close(), g.stop())
	}
	e, err := choose(o, machine{
		found: found, serverURL: serviceURL, publicKey: key, pluginDir: filepath.Join(o.DataDir, "plugins"), stateDir: filepath.Join(o.home, "state"), log: engineLog,
	}, listen.engine)
	if err != nil {
		return errors.Join(err, listen.engine.Close(), listen.gateway.Close(), g.stop())
	}
	ready := make(chan string, 1)
	g.engine(e.name(), func(ctx context.Context) error { return e.run(ctx, func(addr string) { ready <- addr }) })
	select {
	case engineURL := <-ready:
		serviceLog.SetLevel(o.LogLevel)
		g.serve("gateway", func(ctx context.Context) error { return gateway(ctx, o, engineURL, serviceURL, listen.gateway) })
		banner(o, e.name(), engineURL, serviceURL, "http://"+listen.gateway.Addr().String(), found)
	case <-g.ctx.Done():
		err = listen.gateway.Close()
	}
	<-g.ctx.Done()
	if ctx.Err() != nil {
		fmt.Fprintln(o.Stderr, "\nStopping …")
		engineLog.SetLevel(hclog.Error) // the plugin warns that the placement service is gone
	}
	return errors.Join(err, g.stop())
}

func gateway(ctx context.Context, o Options, engineURL, serviceURL string, listener net.Listener) error {
	return server.Run(ctx, server.Config{
		Listener: listener, DatabaseURL: o.DatabaseURL, ConsulAddr: o.ConsulAddr, ConsulToken: o.ConsulToken, NomadAddr: engineURL,
		Anonymous: true, Logger: o.log("gateway"), Spool: filepath.Join(o.DataDir, "usage-spool"),
		Hold: server.Hold{WakeAddr: serviceURL},
	})
}

// prepare settles what was left open and makes the data folder, which one process uses at a time.
func prepare(o *Options) (*lock, error) {
	abs, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, fmt.Errorf("find the data folder: %w", err)
	}
	o.DataDir = abs
	if err := settleEngine(o); err != nil {
		return nil, err
	}
	// Jobs of one engine mean nothing to the other, so each has its own data.
	o.home = filepath.Join(abs, o.Engine)
	for _, dir := range []string{filepath.Join(abs, "plugins"), filepath.Join(o.home, "state")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the data folder: %w", err)
		}
	}
	if o.DatabaseURL == "" {
		o.DatabaseURL = "sqlite://" + filepath.Join(o.home, "heteroflow.db")
	}
	held, err := acquire(filepath.Join(abs, "lock"))
	if err != nil {
		return nil, err
	}
	for name, program := range programs {
		if err := install(filepath.Join(o.BinDir, program), filepath.Join(abs, "plugins", name)); err != nil {
			return nil, errors.Join(err, held.release())
		}
	}
	return held, nil
}

// listenerSet holds the ports from the start, so that a taken one is told before anything runs.
type listenerSet struct{ service, gateway, engine net.Listener }

func listeners(ctx context.Context, o Options) (set listenerSet, err error) {
	var lc net.ListenConfig
	open := func(what, addr, flag string) net.Listener {
		l, e := lc.Listen(ctx, "tcp", addr)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("open the port of the %s: %w\nSomething listens there already: end it, or write %s with another address", what, e, flag))
		}
		return l
	}
	set.service = open("placement service", o.Addr, "-addr")
	set.gateway = open("gateway", o.GatewayAddr, "-gateway-addr")
	if set.engine, _ = lc.Listen(ctx, "tcp", o.EngineAddr); set.engine == nil { // a Nomad may run there: any other port serves
		set.engine = open("engine", "127.0.0.1:0", "-engine-addr")
	}
	if err != nil {
		for _, l := range []net.Listener{set.service, set.gateway, set.engine} {
			if l != nil {
				err = errors.Join(err, l.Close())
			}
		}
	}
	return set, err
}

// publicKey waits for the placement service and asks for the key that checks its grants.
func publicKey(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		key, err := askKey(ctx, url)
		if err == nil {
			return key, nil
		}
		if ctx.Err() != nil {
			return "", err
		}
		clock.Sleep(ctx, clock.System(), 50*time.Millisecond)
	}
}

func banner(o Options, engine, engineURL, serviceURL, gatewayURL string, found inventory) {
	var b strings.Builder
	fmt.Fprintf(&b, "\nHeteroFlow runs.\n\n")
	for _, line := range [][2]string{
		{"placement service", serviceURL + "   (Nomad's API under /v1, its own under /api/v1)"},
		{"gateway", gatewayURL + "/v1   (OpenAI's API)"},
		{"engine", engineURL + "   (" + engine + ")"},
		{"cards", found.describe()},
		{"containers", found.runtimes()},
		{"data", o.DataDir},
	} {
		fmt.Fprintf(&b, "  %-18s %s\n", line[0], line[1])
	}
	client := "heteroflow"
	if serviceURL != "http://127.0.0.1:3333" {
		client = "HETEROFLOW_ADDR=" + serviceURL + " heteroflow"
	}
	runtime := ""
	if !found.docker {
		runtime = " -var runtime=process -var command=" + filepath.Join(o.BinDir, "heteroflow-sim-inference")
	}
	fmt.Fprintf(&b, "\nTry, in another terminal:\n\n  %s gpus\n  %s job run%s jobspecs/shared-inference.nomad.hcl\n  NOMAD_ADDR=%s nomad job status\n", client, client, runtime, serviceURL)
	fmt.Fprintf(&b, "  curl -N %s/v1/chat/completions -d '{\"model\":\"sim-7b\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}' -H 'Content-Type: application/json'\n  %s usage\n", gatewayURL, client)
	fmt.Fprintf(&b, "\nWhoever reaches these ports on this machine is admin: do not open them to others. Ctrl-C stops everything%s.\n", map[bool]string{true: "; tasks go on", false: ", tasks too"}[o.Keep])
	fmt.Fprint(o.Stdout, b.String())
}
