package engine

// Config says which plugins take part. The zero value is the default set.
type Config struct {
	Plugins []PluginSetting `json:"plugins,omitempty"`
}

// PluginSetting switches and weighs one built-in plugin.
type PluginSetting struct {
	Name    string  `json:"name"`
	Enabled bool    `json:"enabled"`
	Weight  float64 `json:"weight"` // of scorers; filters ignore it
}

// Engine decides. It is safe for concurrent use.
type Engine struct{}

// New makes an engine.
func New(cfg Config) *Engine { return &Engine{} }

// Decide places every group of the request on the snapshot, or refuses all of it with the reason.
func (e *Engine) Decide(s Snapshot, r Request) Decision {
	return Decision{Refusal: &Refusal{Code: CodeNoNodes, Sentence: "the cluster has no nodes"}}
}
