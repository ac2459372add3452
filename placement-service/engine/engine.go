package engine

import (
	"slices"
	"sync"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/placement-service/engine/potential"
)

// Config says which plugins take part. The zero value is the default set.
type Config struct {
	// Plugins changes the settings of the plugins it names; the others keep their defaults. Unknown names are ignored,
	// so that a configuration outlives a plugin.
	Plugins []PluginSetting `json:"plugins,omitempty"`
	// Learnt is the demand that the plugin potential scores by; nil while it is not known.
	Learnt *Learnt `json:"-"`
	// Level is how far the cluster is from filling up, 0, to churning, potential.Levels.
	Level int `json:"level,omitempty"`
	// Now is a clock by which plugins are timed, in nanoseconds from any beginning; nil times none. No decision depends
	// on it.
	Now func() int64 `json:"-"`
}

// PluginSetting switches and weighs one built-in plugin.
type PluginSetting struct {
	Name    string  `json:"name"`
	Enabled bool    `json:"enabled"`
	Weight  float64 `json:"weight"` // of scorers; filters ignore it
	// Limits are of the plugin load; when none is set, DefaultLimits hold.
	Limits Limits `json:"limits,omitzero"`
}

// Complete takes what is not set of limits from the defaults of the plugin.
func (s PluginSetting) Complete(defaults PluginSetting) PluginSetting {
	if s.Limits == (Limits{}) {
		s.Limits = defaults.Limits
	}
	return s
}

// limits are those of the plugin load.
func (c *Config) limits() Limits {
	for _, s := range c.Plugins {
		if s.Name == LoadPlugin && s.Limits != (Limits{}) {
			return s.Limits
		}
	}
	return DefaultLimits()
}

// Engine decides. It is safe for concurrent use.
type Engine struct {
	plugins []*meter // every plugin that takes part, in the order in which they are asked
	filters []filterer
	rooms   []roomer
	scorers []scorer
	set     []PluginSetting // of every built-in plugin
	learnt  *Learnt
	level   int
	// Of all plugins: whether each is Impersonal, and the attributes at which they look.
	impersonal bool
	attributes []string
	apart      bool   // share_tenant takes part
	limits     Limits // of load, when it takes part
	now        func() int64
	scratch    *sync.Pool // of *work
}

type filterer struct {
	FilterPlugin
	*meter
}

type roomer struct {
	RoomPlugin
	*meter
}

type scorer struct {
	ScorePlugin
	*meter
	weight float64
}

// New makes an engine.
func New(cfg Config) *Engine {
	cfg.Level = min(potential.Levels, max(0, cfg.Level))
	e := &Engine{learnt: cfg.Learnt, level: cfg.Level, impersonal: true, now: cfg.Now, scratch: &sync.Pool{New: func() any { return &work{} }}}
	for _, r := range registry(cfg) {
		setting := r.setting
		for _, s := range cfg.Plugins {
			if s.Name == setting.Name {
				setting = s.Complete(setting)
			}
		}
		e.set = append(e.set, setting)
		if setting.Enabled {
			e.add(r.plugin, setting.Weight)
		}
	}
	return e
}

// Settings are those of every built-in plugin. An engine that is made with them and the same demand and level decides
// alike.
func (e *Engine) Settings() []PluginSetting { return slices.Clone(e.set) }

// Learnt is what the engine scores by, nil for nothing, and the level.
func (e *Engine) Learnt() (learnt *Learnt, level int) { return e.learnt, e.level }

// With is an engine with one more plugin, asked after the others. Weight is for a ScorePlugin.
func (e *Engine) With(p Plugin, weight float64) *Engine {
	out := e.clone()
	out.add(p, weight)
	return out
}

func (e *Engine) clone() *Engine {
	return &Engine{
		plugins: slices.Clone(e.plugins), filters: slices.Clone(e.filters), rooms: slices.Clone(e.rooms), scorers: slices.Clone(e.scorers),
		set: e.set, learnt: e.learnt, level: e.level, impersonal: e.impersonal, attributes: e.attributes, apart: e.apart, limits: e.limits, now: e.now, scratch: e.scratch,
	}
}

func (e *Engine) add(p Plugin, weight float64) {
	m := &meter{Plugin: p}
	e.know(p)
	if _, is := p.(shareTenant); is {
		e.apart = true
	}
	if l, is := p.(loadLimit); is {
		e.limits = l.limits
	}
	e.plugins = append(e.plugins, m)
	if f, ok := p.(FilterPlugin); ok {
		e.filters = append(e.filters, filterer{f, m})
	}
	if r, ok := p.(RoomPlugin); ok {
		e.rooms = append(e.rooms, roomer{r, m})
	}
	if s, ok := p.(ScorePlugin); ok && weight != 0 {
		e.scorers = append(e.scorers, scorer{s, m, weight})
	}
}

// Decide places every group of the request on the snapshot, or refuses all of it with the reason. When cards that
// are empty but offered in another form would do, the decision names them instead.
func (e *Engine) Decide(s Snapshot, r Request) Decision {
	if r.Loose != "" {
		return e.decideLoose(s, r)
	}
	d := e.decide(&s, &r, true)
	if d.Placed || len(s.Nodes) == 0 || d.Refusal.Code == CodePluginFailed {
		return d
	}
	catalog := CatalogOf(s)
	if d.Refusal.Never = never(catalog, &r, d.Refusal) || neverGang(catalog, &r, d.Refusal); !d.Refusal.Never {
		e.orSwitch(s, &r, &d)
	}
	return d
}

// orSwitch names the cards of which the form is to change, when that helps a request that does not fit.
func (e *Engine) orSwitch(s Snapshot, r *Request, d *Decision) {
	if switches := e.switches(s, *r); len(switches) > 0 {
		d.Switches = switches
		d.Refusal.Code = CodeFormSwitch
		d.Refusal.Sentence = switchSentence(s, switches, d.Refusal.Need)
	}
}

// decide runs the stages on one snapshot. Without say a refusal has no reason, which costs a look at every node.
func (e *Engine) decide(s *Snapshot, r *Request, say bool) Decision {
	if len(s.Nodes) == 0 {
		return Decision{Refusal: &Refusal{Code: CodeNoNodes, Sentence: "the cluster has no nodes yet: start a node with the device plugin"}}
	}
	w := e.scratch.Get().(*work)
	defer e.scratch.Put(w)
	var faults []Fault
	for {
		d, broken, fault := w.isolated(func() Decision { return w.decide(e, s, r, say) })
		if broken == nil {
			d.Faults = faults
			return d
		}
		faults = append(faults, fault)
		if filters(broken.Plugin) {
			d = refusedBy(fault)
			d.Faults = faults
			return d
		}
		e = e.without(broken)
	}
}

func filters(p Plugin) bool {
	_, filters := p.(FilterPlugin)
	_, rooms := p.(RoomPlugin)
	return filters || rooms
}

// decide runs the stages with the plugins of the engine.
func (w *work) decide(e *Engine, s *Snapshot, r *Request, say bool) Decision {
	w.reset(e, s, r)
	w.say = say
	switch {
	case r.elastic():
		return w.decideElastic()
	case r.Gang != nil:
		return w.decideGang()
	}
	plans := make([]GroupPlan, len(r.Groups))
	var scores []Score
	for _, i := range byHardness(r.Groups) {
		plan, refusal := w.group(&r.Groups[i])
		if refusal != nil {
			return Decision{Refusal: refusal}
		}
		plans[i] = plan
		scores = append(scores, w.scores...)
	}
	return Decision{Placed: true, Groups: plans, Scores: scores}
}

// byHardness orders groups so that those that fit in the fewest places choose first: whole cards, then by the memory
// they need on one card.
func byHardness(groups []GroupAsk) []int {
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return hardness(&groups[b]) - hardness(&groups[a])
	})
	return order
}

func hardness(g *GroupAsk) int {
	hardest := 0
	for _, t := range g.Tasks {
		if t.Ask != nil {
			hardest = max(hardest, askHardness(t.Ask))
		}
	}
	return hardest
}

func askHardness(a *accel.Ask) int {
	const wholeCard = 1 << 40 // above any share
	if a.Whole() {
		return wholeCard + a.Count
	}
	return int(min(a.MemoryMiB, 1<<30)) * min(a.Count, 16)
}
