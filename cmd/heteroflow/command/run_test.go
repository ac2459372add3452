package command

import (
	"bytes"
	"flag"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/posener/complete"

	"github.com/heteroflow/heteroflow/internal/accel"
)

func TestRun_Help(t *testing.T) {
	t.Parallel()
	golden(t, "help", call(t, nil, "-help"))
	golden(t, "help_gpus", call(t, nil, "gpus", "-help"))
	golden(t, "unknown", call(t, nil, "frobnicate"))
	golden(t, "group", call(t, nil, "job"))
}

func TestRun_CommandLines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"job", "run"}, "this command needs FILE\nFor help: heteroflow job run -help\n"},
		{[]string{"job", "stop", "a", "b"}, "this command takes JOB: \"b\" is too much\nFor help: heteroflow job stop -help\n"},
		{[]string{"gpus", "x"}, "this command takes no argument: \"x\" is one\nFor help: heteroflow gpus -help\n"},
		{[]string{"gpus", "-nope"}, "flag provided but not defined: -nope\nFor help: heteroflow gpus -help\n"},
		{[]string{"version", "-t", "{{.Nope"}, "-t is not a template: template: -t:1: unclosed action\nFor help: heteroflow version -help\n"},
		{[]string{"job", "run", "-var", "x", "f"}, "invalid value \"x\" for flag -var: write name=value\nFor help: heteroflow job run -help\n"},
		{[]string{"dev", "-log-level", "loud"}, "-log-level \"loud\" is not known: write trace, debug, info, warn or error\nFor help: heteroflow dev -help\n"},
		{[]string{"server", "-database", ""}, "Error: no database: set database_url, DATABASE_URL or -database to postgres://user@host/name or sqlite:///path/file.db\n"},
		{[]string{"gateway", "-config", "/nowhere.hcl"}, "Error: read configuration: open /nowhere.hcl: no such file or directory\n"},
	} {
		r := call(t, map[string]string{"HOME": t.TempDir()}, c.args...)
		if r.code != exitError || r.errors != c.want || r.out != "" {
			t.Errorf("%v: %+v, want %q", c.args, r, c.want)
		}
	}
}

func TestRun_FlagsAfterOperands(t *testing.T) {
	t.Parallel()
	f := newFake(t, statusAnswers())
	if r := f.call(t, nil, "job", "status", "hello", "-t", "{{.ID}}"); r.out != "hello\n" {
		t.Errorf("%+v", r)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	if r := call(t, nil, "version"); r.code != 0 || !strings.HasPrefix(r.out, "HeteroFlow v") {
		t.Errorf("%+v", r)
	}
	if r := call(t, nil, "version", "-t", "{{.Version}}"); r.code != 0 || !strings.Contains(r.out, ".") {
		t.Errorf("%+v", r)
	}
}

// TestCommands_AllAlike holds every command to the manners of all: it says what it does, every flag has help, what
// prints data takes -json and -t, and the shell can complete it.
func TestCommands_AllAlike(t *testing.T) {
	t.Parallel()
	quiet := []string{"dev", "server", "gateway", "engine", "job logs", "key delete", "key retire", "limit delete", "price delete", "endpoint delete"} // print no answer of an API
	for name, build := range registry {
		var buffer bytes.Buffer
		c := build(Env{Stdout: &buffer, Stderr: io.Discard, Getenv: func(string) string { return "" }})
		if c.synopsis == "" || strings.HasSuffix(c.synopsis, ".") {
			t.Errorf("%s: synopsis %q", name, c.synopsis)
		}
		for _, wanted := range []string{"json", "t"} {
			if has := c.flags.Lookup(wanted) != nil; has == slices.Contains(quiet, name) {
				t.Errorf("%s: has -%s: %v", name, wanted, has)
			}
		}
		c.flags.VisitAll(func(f *flag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s -%s: no help", name, f.Name)
			}
			if _, ok := c.AutocompleteFlags()["-"+f.Name]; !ok {
				t.Errorf("%s -%s: no completion", name, f.Name)
			}
		})
		for flagName := range c.predict {
			if flagName != "" && c.flags.Lookup(flagName) == nil {
				t.Errorf("%s: completes -%s, which it does not have", name, flagName)
			}
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	env := Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }}
	brands := gpusCommand(env).AutocompleteFlags()["-vendor"].Predict(complete.Args{})
	if !slices.Contains(brands, "ascend") || len(brands) != len(accel.Vendors()) {
		t.Errorf("brands = %v", brands)
	}
	f := newFake(t, statusAnswers())
	env.Getenv = func(name string) string { return map[string]string{"HETEROFLOW_ADDR": f.URL}[name] }
	c := jobStatusCommand(env)
	c.ctx = t.Context()
	if jobs := c.AutocompleteArgs().Predict(complete.Args{Last: "he"}); !slices.Equal(jobs, []string{"hello"}) {
		t.Errorf("jobs = %v", jobs)
	}
}
