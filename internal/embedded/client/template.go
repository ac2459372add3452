package client

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/hashicorp/nomad/api"
)

// templateFuncs are those that need nothing but the task's environment.
func templateFuncs(env map[string]string) template.FuncMap {
	return template.FuncMap{
		"env": func(k string) string { return env[k] },
		"envOrDefault": func(k, fallback string) string {
			if v := env[k]; v != "" {
				return v
			}
			return fallback
		},
		"toLower": strings.ToLower, "toUpper": strings.ToUpper, "toTitle": strings.ToTitle, "trimSpace": strings.TrimSpace,
		"split":      func(sep, s string) []string { return strings.Split(s, sep) },
		"join":       func(sep string, s []string) string { return strings.Join(s, sep) },
		"replaceAll": func(from, to, s string) string { return strings.ReplaceAll(s, from, to) },
		"contains":   func(sub, s string) bool { return strings.Contains(s, sub) },
		"parseInt":   func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) },
		"toJSON": func(v any) (string, error) {
			b, err := json.Marshal(v)
			return string(b), err
		},
	}
}

// renderTemplates writes a task's templates and returns the variables of those that are environment files. A template
// that reads from a service this engine does not have is an error.
func renderTemplates(templates []*api.Template, dir allocDir, task string, paths taskPaths, in interpolator) (map[string]string, error) {
	env := map[string]string{}
	for n, t := range templates {
		if err := renderTemplate(t, dir, task, paths, in, env); err != nil {
			return nil, fmt.Errorf("template %d: %w", n+1, err)
		}
	}
	return env, nil
}

func renderTemplate(t *api.Template, dir allocDir, task string, paths taskPaths, in interpolator, env map[string]string) error {
	root, err := os.OpenRoot(dir.root)
	if err != nil {
		return err
	}
	defer root.Close()
	text := deref(t.EmbeddedTmpl, "")
	if source := in.text(deref(t.SourcePath, "")); source != "" {
		rel, err := filepath.Rel(dir.root, paths.hostPath(dir, task, source))
		if err != nil {
			return err
		}
		b, err := root.ReadFile(rel)
		if err != nil {
			return fmt.Errorf("read source: %w", err)
		}
		text = string(b)
	}
	tmpl, err := template.New("template").Delims(deref(t.LeftDelim, "{{"), deref(t.RightDelim, "}}")).
		Option("missingkey=error").Funcs(templateFuncs(in.env)).Parse(text)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := tmpl.Execute(&out, nil); err != nil {
		return err
	}
	perms, err := strconv.ParseUint(deref(t.Perms, "0644"), 8, 32)
	if err != nil {
		return fmt.Errorf("perms %q: write an octal mode, for example \"0644\"", *t.Perms)
	}
	dest, err := filepath.Rel(dir.root, paths.hostPath(dir, task, in.text(deref(t.DestPath, ""))))
	if err != nil {
		return err
	}
	// The root refuses a destination that leaves the allocation's folder, also through a link the task made.
	if err := root.MkdirAll(filepath.Dir(dest), 0o755); err != nil {
		return fmt.Errorf("write destination: %w", err)
	}
	if err := root.WriteFile(dest, out.Bytes(), os.FileMode(perms)); err != nil {
		return fmt.Errorf("write destination: %w", err)
	}
	if deref(t.Envvars, false) {
		if err := parseEnvFile(out.Bytes(), env); err != nil {
			return fmt.Errorf("environment file: %w", err)
		}
	}
	return nil
}

// parseEnvFile reads lines of KEY=value, with comments, an optional export, and quotes.
func parseEnvFile(b []byte, env map[string]string) error {
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, v, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		k = strings.TrimSpace(k)
		if !ok || k == "" {
			return fmt.Errorf("line %d is not KEY=value", n)
		}
		v = strings.TrimSpace(v)
		switch {
		case len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"':
			unquoted, err := strconv.Unquote(v)
			if err != nil {
				return fmt.Errorf("line %d: value of %s: %w", n, k, err)
			}
			v = unquoted
		case len(v) >= 2 && v[0] == '\'' && v[len(v)-1] == '\'':
			v = v[1 : len(v)-1]
		}
		env[k] = v
	}
	return sc.Err()
}
