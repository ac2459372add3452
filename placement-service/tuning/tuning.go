// Package tuning holds the settings of the placement plugins and the demand that was learnt, each in versions that stay,
// which every instance of the service reads from the store within a second of a change, and the engine that is made from
// them. What a plugin does, and what is learnt of a demand, belongs to engine.
package tuning

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/internal/clock"
	"github.com/heteroflow/heteroflow/internal/store"
	"github.com/heteroflow/heteroflow/placement-service/engine"
)

// Period is how often the settings are read: a change takes effect everywhere within twice that.
const Period = 400 * time.Millisecond

// setting is the prefix of the names under which versions are kept. The first is 1, none is left out, and one that is
// written stays: whoever writes the next first has it, so that two instances never lose each other's change.
const setting = "engine.plugins/"

// ErrUnknown says that there is no such plugin, ErrNoLimits that it has no limits, ErrNoVersion that there is no such version.
var (
	ErrUnknown   = errors.New("no such plugin")
	ErrNoLimits  = errors.New("the plugin has no limits: those of load are in the plugin " + engine.LoadPlugin)
	ErrNoVersion = errors.New("no such version of the plugin settings")
)

// Settings is where the versions are kept.
type Settings interface {
	Setting(ctx context.Context, name string) (string, error)
	SetSettingOnce(ctx context.Context, name, value string) (current string, won bool, err error)
}

// Version is the settings of all plugins as somebody left them.
type Version struct {
	Number  int                    `json:"-"` // from 1; 0 is the defaults, before any change
	At      time.Time              `json:"at"`
	By      string                 `json:"by"`
	Of      *int                   `json:"restores,omitempty"` // the version that was gone back to; nil for another change
	Plugins []engine.PluginSetting `json:"plugins"`            // of every plugin, in the order in which they are asked
}

// Tuning is safe for concurrent use.
type Tuning struct {
	// Cluster is the nodes that the demand is learnt for; nothing is learnt while it has none. Nil learns nothing. Set it
	// before Run.
	Cluster func() engine.Snapshot
	// Traffic is how many allocations with cards began and ended so far. Nil tells of none. Set it before Run.
	Traffic func() (placed, left int64)

	store Settings
	clock clock.Clock
	log   hclog.Logger

	began   time.Time
	reading sync.Mutex
	current atomic.Pointer[state]
	regime  regime // of Run alone

	asking  sync.Mutex
	asked   []engine.Asked // since the demand was written last
	learnIt chan struct{}  // there is enough to learn from
}

// state is what is in force. It is not changed.
type state struct {
	version Version
	demand  learnt
	level   int
	engine  *engine.Engine
}

// New makes a tuning with the defaults; Refresh or Run reads what is set.
func New(s Settings, c clock.Clock, log hclog.Logger) *Tuning {
	if c == nil {
		c = clock.System()
	}
	t := &Tuning{store: s, clock: c, log: log.Named("tuning"), began: c.Now(), learnIt: make(chan struct{}, 1)}
	t.apply(state{version: complete(Version{})})
	return t
}

// Engine is the engine to decide with now.
func (t *Tuning) Engine() *engine.Engine { return t.current.Load().engine }

// Current is the version in force.
func (t *Tuning) Current() Version {
	v := t.current.Load().version
	v.Plugins = slices.Clone(v.Plugins)
	return v
}

// Update changes one plugin; nil leaves a value as it is. ErrUnknown says that there is none of the name.
func (t *Tuning) Update(ctx context.Context, by, name string, enabled *bool, weight *float64, limits func(*engine.Limits)) (engine.PluginSetting, error) {
	var changed engine.PluginSetting
	err := t.change(ctx, by, func(v *Version) error {
		at := slices.IndexFunc(v.Plugins, func(p engine.PluginSetting) bool { return p.Name == name })
		if at < 0 {
			return fmt.Errorf("plugin %q: %w", name, ErrUnknown)
		}
		if enabled != nil {
			v.Plugins[at].Enabled = *enabled
		}
		if weight != nil {
			v.Plugins[at].Weight = *weight
		}
		if limits != nil {
			if name != engine.LoadPlugin {
				return fmt.Errorf("plugin %q: %w", name, ErrNoLimits)
			}
			limits(&v.Plugins[at].Limits)
		}
		changed = v.Plugins[at]
		return nil
	})
	return changed, err
}

// Restore makes the settings of an earlier version, 0 for the defaults, the newest one. ErrNoVersion says that there is
// no such version.
func (t *Tuning) Restore(ctx context.Context, by string, number int) (Version, error) {
	err := t.change(ctx, by, func(v *Version) error {
		old, err := t.Version(ctx, number)
		v.Plugins, v.Of = old.Plugins, &number
		return err
	})
	return t.Current(), err
}

// change writes the next version. What another instance wrote meanwhile is read first and stays.
func (t *Tuning) change(ctx context.Context, by string, edit func(*Version) error) error {
	for {
		if err := t.Refresh(ctx); err != nil {
			return err
		}
		next := t.Current()
		next.Number, next.At, next.By, next.Of = next.Number+1, t.clock.Now(), by, nil
		if err := edit(&next); err != nil {
			return err
		}
		text, err := json.Marshal(next)
		if err != nil {
			return fmt.Errorf("encode plugin settings: %w", err)
		}
		if _, won, err := t.store.SetSettingOnce(ctx, nameOf(next.Number), string(text)); won || err != nil {
			return errors.Join(err, t.Refresh(ctx))
		}
	}
}

// Version reads one version, whoever wrote it; 0 is the defaults.
func (t *Tuning) Version(ctx context.Context, number int) (Version, error) {
	if number == 0 {
		return complete(Version{}), nil
	}
	text, err := t.store.Setting(ctx, nameOf(number))
	if errors.Is(err, store.ErrNotFound) {
		return Version{}, fmt.Errorf("version %d: %w", number, ErrNoVersion)
	}
	if err != nil {
		return Version{}, err
	}
	v := Version{Number: number}
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return Version{}, fmt.Errorf("read setting %s: %w", nameOf(number), err)
	}
	return complete(v), nil
}

func nameOf(number int) string { return setting + strconv.Itoa(number) }

// Refresh reads what is set, and what was learnt.
func (t *Tuning) Refresh(ctx context.Context) error {
	t.reading.Lock()
	defer t.reading.Unlock()
	now := *t.current.Load()
	newest, err := newestAfter(now.version, now.version.Number, func(number int) (Version, error) { return t.Version(ctx, number) })
	if err != nil {
		return err
	}
	if newest.Number != now.version.Number {
		now.version = newest
		t.apply(now)
		t.log.Info("plugin settings changed", "version", newest.Number, "by", newest.By)
	}
	return t.refreshDemand(ctx)
}

// newestAfter is the last version there is. Versions follow each other without a gap: it looks farther and farther
// ahead, then back.
func newestAfter[V any](have V, number int, read func(number int) (V, error)) (V, error) {
	for step := 1; ; {
		v, err := read(number + step)
		switch {
		case err == nil:
			have, number, step = v, number+step, step*2
		case !errors.Is(err, ErrNoVersion):
			return have, err
		case step == 1:
			return have, nil
		default:
			step = 1
		}
	}
}

// apply puts a state in force.
func (t *Tuning) apply(s state) {
	since := func() int64 { return int64(t.clock.Now().Sub(t.began)) }
	s.engine = engine.New(engine.Config{Plugins: s.version.Plugins, Learnt: s.demand.learnt, Level: s.level, Now: since})
	t.current.Store(&s)
}

// complete puts the settings over the defaults, so that a plugin that is new in this build has its own.
func complete(v Version) Version {
	list := engine.DefaultPlugins()
	for i := range list {
		if at := slices.IndexFunc(v.Plugins, func(p engine.PluginSetting) bool { return p.Name == list[i].Name }); at >= 0 {
			list[i] = v.Plugins[at].Complete(list[i])
		}
	}
	v.Plugins = list
	return v
}

// Run reads the settings, and learns, until the context ends.
func (t *Tuning) Run(ctx context.Context) error {
	tick := t.clock.NewTicker(Period)
	defer tick.Stop()
	failing := false
	for {
		var err error
		select {
		case <-ctx.Done():
			return t.keep(context.WithoutCancel(ctx))
		case <-t.learnIt:
			err = t.learn(ctx, false)
		case <-tick.C():
			t.watchTraffic()
			err = t.Refresh(ctx)
		}
		if err != nil && !failing && ctx.Err() == nil {
			t.log.Warn("plugin settings not read", "error", err)
		}
		failing = err != nil
	}
}
