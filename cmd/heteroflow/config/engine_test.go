package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func engineFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "engine.hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadEngine_PluginValues(t *testing.T) {
	t.Parallel()
	e, err := ReadEngine(engineFile(t, `
data_dir   = "/data"
plugin_dir = "/plugins"
plugin "heteroflow" {
  args = ["-x"]
  config {
    state_dir = "/s"
    docker {
      enabled    = false
      allow_caps = ["KILL"]
    }
  }
}
plugin "heteroflow-device" {}
`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.Plugins[0].Values()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"state_dir": "/s", "docker": []any{map[string]any{"enabled": false, "allow_caps": []any{"KILL"}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	if none, err := e.Plugins[1].Values(); err != nil || len(none) != 0 {
		t.Errorf("no config block: %v, %v", none, err)
	}
}

func TestReadEngine_NamesThePlace(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"an unknown argument": "data_dir = \"/d\"\nplugin_dir = \"/p\"\ndatadir = 1\n",
		"no data_dir":         "plugin_dir = \"/p\"\n",
		"broken":              "data_dir = = 1\n",
	} {
		if _, err := ReadEngine(engineFile(t, text)); err == nil || !strings.Contains(err.Error(), "engine.hcl:") {
			t.Errorf("%s: want an error with its place, got %v", name, err)
		}
	}
}

func TestReadEngine_SaysWhatToWrite(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"data_dir = \"\"\nplugin_dir = \"/p\"\n":                         "data_dir is empty",
		"data_dir = \"/d\"\nplugin_dir = \"\"\n":                         "plugin_dir is empty",
		"data_dir = \"/d\"\nplugin_dir = \"/p\"\nlog_level = \"loud\"\n": "write trace, debug, info, warn or error",
	} {
		if _, err := ReadEngine(engineFile(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
