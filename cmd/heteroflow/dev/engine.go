package dev

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/heteroflow/heteroflow/internal/embedded"
	"github.com/heteroflow/heteroflow/internal/embedded/client"
)

// machine is what both engines are told about this machine.
type machine struct {
	found     inventory
	serverURL string // placement service
	publicKey string // of its grants
	pluginDir string
	stateDir  string
	log       hclog.Logger
}

// deviceConfig is the device plugin's config block.
func (m machine) deviceConfig() map[string]any {
	config := map[string]any{"state_dir": m.stateDir, "server": m.serverURL, "fingerprint_period": "2s"}
	if m.found.sim != "" {
		config["sim_config"] = m.found.sim
	}
	return config
}

// driverConfig is the task driver's config block.
func (m machine) driverConfig() map[string]any {
	return map[string]any{
		"state_dir": m.stateDir, "grant_public_key": m.publicKey, "server": m.serverURL,
		"docker":  map[string]any{"enabled": m.found.docker},
		"process": map[string]any{"enabled": m.found.process},
	}
}

// settleEngine turns auto into what there is, and finds the program of Nomad.
func settleEngine(o *Options) error {
	program := o.NomadPath
	if program == "" {
		program = "nomad"
	}
	path, err := exec.LookPath(program)
	switch o.Engine {
	case Embedded:
		return nil
	case Nomad:
		if err != nil {
			return fmt.Errorf("find nomad: %w\nInstall it, or write -engine=embedded", err)
		}
	case Auto:
		o.Engine = Embedded
		if err == nil {
			o.Engine = Nomad
		}
	default:
		return fmt.Errorf("engine %q is not known: write auto, embedded or nomad", o.Engine)
	}
	o.NomadPath = path
	return nil
}

// choose makes the engine. It takes the listener over.
func choose(o Options, m machine, listener net.Listener) (engine, error) {
	if o.Engine == Nomad {
		return newNomad(o, m, listener)
	}
	return newEmbedded(o, m, listener)
}

type embeddedEngine struct{ *embedded.Engine }

func newEmbedded(o Options, m machine, listener net.Listener) (engine, error) {
	e, err := embedded.New(embedded.Config{
		DataDir: filepath.Join(o.home, "engine"), Listener: listener, NodeEnabled: true, PluginDir: m.pluginDir,
		Plugins: []client.PluginConfig{{Name: devicePlugin, Config: m.deviceConfig()}, {Name: driverPlugin, Config: m.driverConfig()}},
		NewNode: func(c client.Config) (embedded.NodeSide, error) {
			c.StopOnExit, c.ConsulAddr = !o.Keep, o.ConsulAddr
			return client.New(c)
		},
		Logger: m.log,
	})
	if err != nil {
		return nil, fmt.Errorf("make the embedded engine: %w", err)
	}
	return &embeddedEngine{e}, nil
}

func (*embeddedEngine) name() string { return "embedded engine" }

func (e *embeddedEngine) run(ctx context.Context, ready func(string)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.Run(ctx) })
	g.Go(func() error {
		select {
		case <-e.Ready():
			ready(e.Addr())
		case <-ctx.Done():
		}
		return nil
	})
	return g.Wait()
}
