package engine

// BuiltIn is every plugin of the registry, also those that are off by default.
func BuiltIn(cfg Config) []Plugin {
	var out []Plugin
	for _, r := range registry(cfg) {
		out = append(out, r.plugin)
	}
	return out
}

// LearntSome is learntSome.
func LearntSome() *Learnt { return learntSome() }
