package client

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/basepb"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

const (
	// pluginCall bounds the calls of a start that answer at once.
	pluginCall = time.Minute
	// Ports for loopback helpers of drivers, as an agent tells them.
	minPluginPort, maxPluginPort = 14000, 14512
)

// binary is one plugin file that passed the checks of an agent's start.
type binary struct {
	path   string
	conf   PluginConfig
	info   *basepb.PluginInfoResponse
	config []byte // encoded by the plugin's schema
	log    hclog.Logger
}

// inspect does what an agent does before it uses a plugin: one launch to ask who it is, one to try the configuration
// twice. A plugin that fails here stops the engine from starting, with the reason.
func inspect(ctx context.Context, dir string, conf PluginConfig, log hclog.Logger) (*binary, error) {
	b := &binary{path: filepath.Join(dir, conf.Name), conf: conf, log: log.Named(conf.Name)}
	st, err := os.Stat(b.path)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", conf.Name, err)
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o111 == 0 {
		return nil, fmt.Errorf("plugin %s: %s is not an executable file", conf.Name, b.path)
	}
	spec, err := b.ask(ctx)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", conf.Name, err)
	}
	if b.config, err = host.EncodeConfig(spec, conf.Config); err != nil {
		return nil, fmt.Errorf("plugin %s: %w", conf.Name, err)
	}
	if err := b.tryConfig(ctx); err != nil {
		return nil, fmt.Errorf("plugin %s refuses its config: %w", conf.Name, err)
	}
	return b, nil
}

func (b *binary) ask(ctx context.Context) (*hclspec.Spec, error) {
	p, err := b.launch(ctx)
	if err != nil {
		return nil, err
	}
	defer p.Kill()
	ctx, cancel := context.WithTimeout(ctx, pluginCall)
	defer cancel()
	if b.info, err = p.Base().PluginInfo(ctx, &basepb.PluginInfoRequest{}); err != nil {
		return nil, fmt.Errorf("ask for its name: %w", err)
	}
	if b.info.Name != b.conf.Name {
		return nil, fmt.Errorf("it calls itself %q: the file must have the same name", b.info.Name)
	}
	schema, err := p.Base().ConfigSchema(ctx, &basepb.ConfigSchemaRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask for its config schema: %w", err)
	}
	return schema.GetSpec(), nil
}

func (b *binary) tryConfig(ctx context.Context) error {
	p, err := b.launch(ctx)
	if err != nil {
		return err
	}
	defer p.Kill()
	for range 2 {
		if err := b.setConfig(ctx, p, nil); err != nil {
			return err
		}
	}
	return nil
}

func (b *binary) setConfig(ctx context.Context, p *host.Plugin, nomad *basepb.NomadConfig) error {
	ctx, cancel := context.WithTimeout(ctx, pluginCall)
	defer cancel()
	_, err := p.Base().SetConfig(ctx, &basepb.SetConfigRequest{MsgpackConfig: b.config, NomadConfig: nomad, PluginApiVersion: nomadplugin.APIVersion})
	if err != nil {
		return fmt.Errorf("%s", rpcText(err))
	}
	return nil
}

func (b *binary) launch(ctx context.Context) (*host.Plugin, error) {
	return host.Launch(ctx, host.Command{Path: b.path, Args: b.conf.Args}, b.log)
}

// start launches the instance that stays.
func (b *binary) start(ctx context.Context) (*host.Plugin, error) {
	p, err := b.launch(ctx)
	if err != nil {
		return nil, err
	}
	nomad := &basepb.NomadConfig{Driver: &basepb.NomadDriverConfig{ClientMinPort: minPluginPort, ClientMaxPort: maxPluginPort}}
	if err := b.setConfig(ctx, p, nomad); err != nil {
		p.Kill()
		return nil, fmt.Errorf("plugin %s refuses its config: %w", b.conf.Name, err)
	}
	return p, nil
}

// reattachStore remembers how to find the running plugins again after the engine was killed.
type reattachStore struct {
	path string
	mu   sync.Mutex
	all  map[string]host.ReattachInfo
}

func openReattachStore(path string) (*reattachStore, error) {
	s := &reattachStore{path: path, all: map[string]host.ReattachInfo{}}
	if _, err := readJSON(path, &s.all); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *reattachStore) get(name string) (host.ReattachInfo, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, ok := s.all[name]
	return info, ok
}

func (s *reattachStore) put(name string, info host.ReattachInfo) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[name] = info
	return writeJSON(s.path, s.all)
}

func (s *reattachStore) remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, name)
	return writeJSON(s.path, s.all)
}

// latch is closed once, by whoever comes first.
type latch struct {
	once sync.Once
	ch   chan struct{}
}

func newLatch() *latch { return &latch{ch: make(chan struct{})} }
func (l *latch) open() { l.once.Do(func() { close(l.ch) }) }
func (l *latch) is() bool {
	select {
	case <-l.ch:
		return true
	default:
		return false
	}
}
