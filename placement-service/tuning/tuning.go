// Package tuning holds the settings of the placement plugins, which every instance of the service reads from the
// store within a second of a change, and the engine that is made from them. What a plugin does belongs to engine.
package tuning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

const (
	setting = "engine.plugins"
	// Period is how often the setting is read: a change takes effect everywhere within twice that.
	Period = 400 * time.Millisecond
)

// ErrUnknown says that there is no such plugin.
var ErrUnknown = errors.New("no such plugin")

// Settings is where the setting is kept.
type Settings interface {
	Setting(ctx context.Context, name string) (string, error)
	PutSetting(ctx context.Context, name, value string) error
}

// Tuning is safe for concurrent use.
type Tuning struct {
	store Settings
	clock clock.Clock
	log   hclog.Logger

	change  sync.Mutex
	current atomic.Pointer[state]
}

type state struct {
	text     string
	settings []engine.PluginSetting
	engine   *engine.Engine
}

// New makes a tuning with the defaults; Refresh or Run reads what is set.
func New(s Settings, c clock.Clock, log hclog.Logger) *Tuning {
	if c == nil {
		c = clock.System()
	}
	t := &Tuning{store: s, clock: c, log: log.Named("tuning")}
	t.apply("", nil)
	return t
}

// Engine is the engine to decide with now.
func (t *Tuning) Engine() *engine.Engine { return t.current.Load().engine }

// List is every plugin with its settings, in the order in which they are asked.
func (t *Tuning) List() []engine.PluginSetting { return slices.Clone(t.current.Load().settings) }

// Update changes one plugin; nil leaves a value as it is. ErrUnknown says that there is none of the name.
func (t *Tuning) Update(ctx context.Context, name string, enabled *bool, weight *float64) (engine.PluginSetting, error) {
	t.change.Lock()
	defer t.change.Unlock()
	if err := t.Refresh(ctx); err != nil {
		return engine.PluginSetting{}, err
	}
	list := t.List()
	at := slices.IndexFunc(list, func(p engine.PluginSetting) bool { return p.Name == name })
	if at < 0 {
		return engine.PluginSetting{}, fmt.Errorf("plugin %q: %w", name, ErrUnknown)
	}
	if enabled != nil {
		list[at].Enabled = *enabled
	}
	if weight != nil {
		list[at].Weight = *weight
	}
	text, err := json.Marshal(list)
	if err != nil {
		return engine.PluginSetting{}, fmt.Errorf("encode plugin settings: %w", err)
	}
	if err := t.store.PutSetting(ctx, setting, string(text)); err != nil {
		return engine.PluginSetting{}, err
	}
	t.apply(string(text), list)
	return list[at], nil
}

// Refresh reads what is set.
func (t *Tuning) Refresh(ctx context.Context) error {
	text, err := t.store.Setting(ctx, setting)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil || text == t.current.Load().text {
		return err
	}
	var list []engine.PluginSetting
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return fmt.Errorf("read setting %s: %w", setting, err)
	}
	t.apply(text, list)
	t.log.Info("plugin settings changed")
	return nil
}

// apply puts settings over the defaults, so that a plugin that is new in this build has its own.
func (t *Tuning) apply(text string, set []engine.PluginSetting) {
	list := engine.DefaultPlugins()
	for i := range list {
		if at := slices.IndexFunc(set, func(p engine.PluginSetting) bool { return p.Name == list[i].Name }); at >= 0 {
			list[i] = set[at]
		}
	}
	t.current.Store(&state{text: text, settings: list, engine: engine.New(engine.Config{Plugins: list})})
}

// Run reads the setting until the context ends.
func (t *Tuning) Run(ctx context.Context) error {
	tick := t.clock.NewTicker(Period)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
		err := t.Refresh(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			t.log.Warn("plugin settings not read", "error", err)
		}
		failing = err != nil
	}
}
