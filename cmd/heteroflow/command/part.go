package command

import (
	"cmp"
	"context"

	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/cmd/heteroflow/config"
	"github.com/heteroflow/heteroflow/gateway/hold"
	"github.com/heteroflow/heteroflow/gateway/relay"
	"github.com/heteroflow/heteroflow/gateway/server"
	"github.com/heteroflow/heteroflow/gateway/upstream"
	"github.com/heteroflow/heteroflow/internal/version"
	placement "github.com/heteroflow/heteroflow/placement-service/server"
)

// partFlags are the flags of a part that runs for long. They beat the environment, which beats the file.
type partFlags struct {
	file, addr, database, anonymous, nomad, consul, logLevel *string
	logJSON                                                  *bool
}

func (c *command) withPart(addr string) *partFlags {
	c.predict["config"] = complete.PredictFiles("*.hcl")
	c.predict["log-level"] = complete.PredictSet("trace", "debug", "info", "warn", "error")
	c.predict["anonymous"] = complete.PredictSet("none", "viewer", "member", "admin")
	return &partFlags{
		file:      c.flags.String("config", "", "configuration `file`, in HCL"),
		addr:      c.flags.String("addr", "", "`host:port` to listen on (default "+addr+")"),
		database:  c.flags.String("database", "", "`url` of the database, postgres://… or sqlite:///path, also DATABASE_URL"),
		anonymous: c.flags.String("anonymous", "", "`role` of calls without a key: none, viewer, member or admin (default none)"),
		nomad:     c.flags.String("nomad", "", "`address` of Nomad, also NOMAD_ADDR (default "+config.NomadAddr+")"),
		consul:    c.flags.String("consul", "", "`address` of Consul, also CONSUL_HTTP_ADDR; there is none when left out"),
		logLevel:  c.flags.String("log-level", "", "trace, debug, info, warn or error, also HETEROFLOW_LOG_LEVEL (default info)"),
		logJSON:   c.flags.Bool("log-json", false, "log as JSON"),
	}
}

// read puts the configuration together.
func (f *partFlags) read(env Env, addr string) (*config.Part, error) {
	p := config.New(addr)
	if *f.file != "" {
		if err := p.ReadFile(*f.file); err != nil {
			return nil, err
		}
	}
	p.ReadEnv(env.Getenv)
	for target, value := range map[*string]string{
		&p.Addr: *f.addr, &p.DatabaseURL: *f.database, &p.Anonymous: *f.anonymous, &p.Nomad.Address: *f.nomad,
		&p.Consul.Address: *f.consul, &p.LogLevel: *f.logLevel,
	} {
		*target = cmp.Or(value, *target)
	}
	p.LogJSON = p.LogJSON || *f.logJSON
	return p, p.Validate()
}

func serverCommand(env Env) *command {
	c := newCommand(env, "Run the placement service", "")
	c.about = `
It answers Nomad's API under /v1 and its own under /api/v1. The first start prints the first admin key to standard
error, once. Tokens and certificates for Nomad and Consul are taken from their own variables, such as NOMAD_TOKEN.`
	flags := c.withPart(config.ServerAddr)
	c.predict["record"] = complete.PredictDirs("*")
	record := c.flags.String("record", "", "`folder` in which decisions are kept for heteroflow replay; none when left out")
	c.run = func(ctx context.Context, _ []string) error {
		p, err := flags.read(env, config.ServerAddr)
		if err != nil {
			return err
		}
		log := p.Logger("heteroflow", env.Stderr)
		log.Info("placement service starts", "version", version.Version, "addr", p.Addr, "nomad", p.Nomad.Address)
		rules, err := p.Preemption.Rules()
		if err != nil {
			return err
		}
		patience, err := p.Queue.Waits()
		if err != nil {
			return err
		}
		role := p.Anonymous
		if role == "none" {
			role = ""
		}
		return placement.Run(ctx, placement.Config{
			Addr: p.Addr, DatabaseURL: p.DatabaseURL, NomadAddr: p.Nomad.Address, NomadToken: p.Nomad.Token,
			ConsulAddr: p.Consul.Address, ConsulToken: p.Consul.Token, Anonymous: role, Stderr: env.Stderr, Log: log,
			RecordDir: cmp.Or(*record, p.Record), Preemption: rules, Patience: patience,
		})
	}
	return c
}

func gatewayCommand(env Env) *command {
	c := newCommand(env, "Run the gateway for OpenAI clients", "")
	c.about = `
It finds its backends in Consul, or in Nomad's registry when no Consul is named. With -anonymous other than none,
calls without a key are served: that is for one machine only.`
	flags := c.withPart(config.GatewayAddr)
	spool := c.flags.String("spool", "", "`folder` for usage while the database is away, also HETEROFLOW_SPOOL (default "+config.Spool+")")
	c.predict["spool"] = complete.PredictDirs("*")
	c.run = func(ctx context.Context, _ []string) error {
		p, err := flags.read(env, config.GatewayAddr)
		if err != nil {
			return err
		}
		times, err := p.Relay.Times()
		if err != nil {
			return err
		}
		wait, err := p.Hold.MaxWait()
		if err != nil {
			return err
		}
		log := p.Logger("heteroflow", env.Stderr)
		log.Info("gateway starts", "version", version.Version, "addr", p.Addr)
		var sender relay.Sender
		if p.Relay.Client == "net/http" {
			sender = upstream.NewStandard()
		}
		return server.Run(ctx, server.Config{
			Sender: sender, Standard: p.Relay.Server == "net/http", Addr: p.Addr, DatabaseURL: p.DatabaseURL, NomadAddr: p.Nomad.Address, NomadToken: p.Nomad.Token,
			ConsulAddr: p.Consul.Address, ConsulToken: p.Consul.Token, Anonymous: p.Anonymous != "none", Logger: log,
			Spool: cmp.Or(*spool, p.Spool, config.Spool), MaxBody: p.Relay.MaxBodyMB << 20,
			Rules: relay.Rules{Headers: times.Headers, Whole: times.Whole, FirstToken: times.FirstToken, Idle: times.Idle, Keepalive: times.Keepalive, Tries: p.Relay.Tries},
			Hold: server.Hold{
				WakeAddr: p.Hold.Wake, WakeToken: cmp.Or(p.Hold.Token, p.Nomad.Token),
				Limits: hold.Limits{Requests: p.Hold.MaxRequests, Bytes: p.Hold.MaxMB << 20, Wait: wait},
			},
		})
	}
	return c
}
