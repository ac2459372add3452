package brandtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
)

func TestPlayer_PlaysWhatItIsTold(t *testing.T) {
	t.Parallel()
	p := Install(t, t.TempDir(), "tool")
	run := func(args ...string) vendorcli.Output {
		t.Helper()
		out, err := vendorcli.Run(context.Background(), p.Path, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	want := func(got, want vendorcli.Output) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	refused := vendorcli.Output{Stderr: "stand-in: no answer to: info -m\n", ExitCode: 2}
	want(run("info", "-m"), refused)
	p.Play(t, map[string]Answer{"": {Text: "a table\n"}, "info *": {Text: "any\\n page\n"}, "info -m": {Text: "no\n", Stderr: true, Status: 3, Delay: time.Millisecond}})
	want(run(), vendorcli.Output{Stdout: "a table\n"})
	want(run("info", "-m"), vendorcli.Output{Stderr: "no\n", ExitCode: 3})
	want(run("info", "-t", "usages"), vendorcli.Output{Stdout: "any\\n page\n"})
	p.Play(t, map[string]Answer{"": {Text: "another table\n"}})
	want(run(), vendorcli.Output{Stdout: "another table\n"})
	want(run("info", "-m"), refused)
	if diff := cmp.Diff([]string{"info -m", "", "info -m", "info -t usages", "", "info -m"}, p.Calls(t)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestPlayer_Hangs(t *testing.T) {
	t.Parallel()
	path := Tool(t, "tool", map[string]Answer{"*": {Hang: true}})
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := vendorcli.Run(ctx, path, "any"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ended: %v", err)
	}
}
