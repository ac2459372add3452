package command

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/cmd/heteroflow/dev"
)

func devCommand(env Env) *command {
	c := newCommand(env, "Run everything on this machine, to try it", "")
	c.about = `
Starts an engine, the two plugins, the placement service and the gateway, on one database file. Where there is no
card, a machine with cards of every brand is simulated; where there is no Docker, tasks run as plain processes.
Calls from this machine need no key. Ctrl-C stops everything, tasks too; the next start goes on with the same jobs.`
	o := dev.Options{Stdout: env.Stdout, Stderr: env.Stderr}
	c.flags.StringVar(&o.Engine, "engine", dev.Auto, "embedded, nomad, or auto: a nomad on PATH when there is one")
	c.flags.StringVar(&o.NomadPath, "nomad-path", "", "`program` of Nomad (default: nomad on PATH)")
	c.flags.StringVar(&o.DataDir, "data-dir", "", "`folder` for everything that is kept (default ~/.heteroflow/dev)")
	c.flags.StringVar(&o.BinDir, "bin-dir", "", "`folder` of the plugins (default: beside this program)")
	c.flags.StringVar(&o.Sim, "sim", "", "`file` of simulated cards, instead of the machine's own")
	c.flags.StringVar(&o.Addr, "addr", "127.0.0.1:3333", "`host:port` of the placement service")
	c.flags.StringVar(&o.GatewayAddr, "gateway-addr", "127.0.0.1:8080", "`host:port` of the gateway")
	c.flags.StringVar(&o.EngineAddr, "engine-addr", "127.0.0.1:4646", "`host:port` of the engine's API; another port is taken when this one is not free")
	c.flags.BoolVar(&o.Process, "process", false, "allow plain processes although Docker is there")
	c.flags.BoolVar(&o.Keep, "keep", false, "leave tasks running at the end")
	level := c.flags.String("log-level", cmp.Or(env.Getenv("HETEROFLOW_LOG_LEVEL"), "warn"), "trace, debug, info, warn or error; logs go to standard error")
	c.predict["engine"] = complete.PredictSet(dev.Auto, dev.Embedded, dev.Nomad)
	c.predict["data-dir"], c.predict["bin-dir"] = complete.PredictDirs("*"), complete.PredictDirs("*")
	c.predict["sim"] = complete.PredictFiles("*.hcl")
	c.run = func(ctx context.Context, _ []string) error {
		if err := defaultFolders(&o); err != nil {
			return err
		}
		o.DatabaseURL = env.Getenv("DATABASE_URL")
		o.ConsulAddr, o.ConsulToken = env.Getenv("CONSUL_HTTP_ADDR"), env.Getenv("CONSUL_HTTP_TOKEN")
		if hclog.LevelFromString(*level) == hclog.NoLevel {
			return &usageError{fmt.Sprintf("-log-level %q is not known: write trace, debug, info, warn or error", *level)}
		}
		o.LogLevel = hclog.LevelFromString(*level)
		return dev.Run(ctx, o)
	}
	return c
}

func defaultFolders(o *dev.Options) error {
	if o.DataDir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return fmt.Errorf("find a place for the data: %w: write -data-dir", err)
		}
		o.DataDir = filepath.Join(home, ".heteroflow", "dev")
	}
	if o.BinDir == "" {
		own, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w: write -bin-dir", err)
		}
		o.BinDir = filepath.Dir(own)
	}
	return nil
}
