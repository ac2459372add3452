package engine

// BuiltIn is every plugin of the registry, also those that are off by default.
func BuiltIn() []Plugin {
	var out []Plugin
	for _, r := range registry() {
		out = append(out, r.plugin)
	}
	return out
}
