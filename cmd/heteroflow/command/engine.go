package command

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/cmd/heteroflow/config"
	"github.com/heteroflow/heteroflow/internal/embedded"
	"github.com/heteroflow/heteroflow/internal/embedded/client"
)

func engineCommand(env Env) *command {
	c := newCommand(env, "Run the embedded engine alone, on this machine", "")
	c.about = `
The embedded engine serves the part of Nomad's API that one machine needs and hosts the same two plugins. It is
never a cluster: past one machine, run Nomad. Tasks go on when the engine ends and are found again at its next start.`
	file := c.flags.String("config", "", "configuration `file`, in HCL: data_dir, plugin_dir, addr and plugin blocks")
	c.predict["config"] = complete.PredictFiles("*.hcl")
	c.run = func(ctx context.Context, _ []string) error {
		if *file == "" {
			return &usageError{"-config is missing: write the file that names data_dir, plugin_dir and the plugins"}
		}
		e, err := config.ReadEngine(*file)
		if err != nil {
			return err
		}
		conf := embedded.Config{
			DataDir: e.DataDir, HTTPAddr: e.Addr, NodeEnabled: true, PluginDir: e.PluginDir, ConsulAddr: e.Consul.Address,
			Node:   client.NodeConfig{Name: e.Name, CPUMHz: e.CPUMHz, MemoryMiB: e.MemoryMiB},
			Logger: hclog.New(&hclog.LoggerOptions{Name: "engine", Level: hclog.LevelFromString(e.LogLevel), Output: env.Stderr}),
		}
		for _, p := range e.Plugins {
			values, err := p.Values()
			if err != nil {
				return err
			}
			conf.Plugins = append(conf.Plugins, client.PluginConfig{Name: p.Name, Args: p.Args, Config: values})
		}
		engine, err := embedded.New(conf)
		if err != nil {
			return err
		}
		return engine.Run(ctx)
	}
	return c
}
