package process

import (
	"path/filepath"
	"strings"
)

// Paths turns the paths of the task's view (/alloc, /local, /secrets, as Nomad gives them to drivers with image
// isolation) into those of the host, which is where a plain process sees its files.
type Paths struct{ roots [3][2]string }

// HostPaths is the table for a task whose files are below allocDir.
func HostPaths(allocDir, task string) Paths {
	return Paths{roots: [3][2]string{
		{"/alloc", filepath.Join(allocDir, "alloc")},
		{"/local", filepath.Join(allocDir, task, "local")},
		{"/secrets", filepath.Join(allocDir, task, "secrets")},
	}}
}

// Value rewrites a text that is, or begins with, one of the task's paths. A path behind the first "=" counts too
// ("--config=/local/x"), and each part of a list joined by colons; other text stays as it is.
func (p Paths) Value(s string) string {
	if name, value, ok := strings.Cut(s, "="); ok && !strings.HasPrefix(s, "/") {
		return name + "=" + p.list(value)
	}
	return p.list(s)
}

func (p Paths) list(s string) string {
	if !strings.Contains(s, ":/") {
		return p.one(s)
	}
	parts := strings.Split(s, ":")
	for i, part := range parts {
		// The part behind "http:" begins with two slashes and never with a root of the task.
		parts[i] = p.one(part)
	}
	return strings.Join(parts, ":")
}

func (p Paths) one(s string) string {
	for _, r := range p.roots {
		if s == r[0] {
			return r[1]
		}
		if rest, ok := strings.CutPrefix(s, r[0]+"/"); ok {
			return r[1] + "/" + rest
		}
	}
	return s
}

// Values rewrites each text of a list into a new one.
func (p Paths) Values(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = p.Value(s)
	}
	return out
}

// Env rewrites the values of an environment into a new one; names never change.
func (p Paths) Env(env map[string]string) map[string]string {
	out := make(map[string]string, len(env))
	for name, value := range env {
		out[name] = p.list(value)
	}
	return out
}
