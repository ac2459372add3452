package client

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"pgregory.net/rapid"

	"github.com/heteroflow/heteroflow/internal/nomadplugin/driverpb"
)

func TestInterpolate(t *testing.T) {
	t.Parallel()
	in := interpolator{
		node: &api.Node{ID: "n1", Name: "node", Datacenter: "dc1", NodeClass: "gpu", NodePool: "default", Attributes: map[string]string{"kernel.name": "linux", "empty": ""}, Meta: map[string]string{"rack": "r1"}},
		env:  map[string]string{"NOMAD_PORT_http": "80", "NOMAD_REGION": "global", "HOME": "/root"},
	}
	for text, want := range map[string]string{
		"plain $ text":                          "plain $ text",
		"${node.unique.id}/${node.unique.name}": "n1/node",
		"${node.datacenter} ${node.class} ${node.pool} ${node.region}": "dc1 gpu default global",
		"${attr.kernel.name}":                  "linux",
		"[${attr.empty}]":                      "[]",
		"${meta.rack}":                         "r1",
		"a${NOMAD_PORT_http}b":                 "a80b",
		`${env["HOME"]} ${env.HOME} ${ HOME }`: "/root /root /root",
		"${unknown} stays":                     "${unknown} stays",
		"$${HOME}":                             "${HOME}",
		"${":                                   "${",
		"${attr.none}":                         "${attr.none}",
	} {
		if got := in.text(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	tree := map[string]any{"a": []any{"${HOME}", 1, true}, "b": map[string]any{"c": "${meta.rack}"}, "d": []string{"${HOME}"}, "e": []map[string]any{{"f": "${HOME}"}}, "g": nil}
	want := map[string]any{"a": []any{"/root", 1, true}, "b": map[string]any{"c": "r1"}, "d": []any{"/root"}, "e": []any{map[string]any{"f": "/root"}}, "g": nil}
	if diff := cmp.Diff(want, in.value(tree)); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
}

func FuzzInterpolate(f *testing.F) {
	f.Add("${HOME} $${x} ${")
	in := interpolator{node: &api.Node{}, env: map[string]string{"HOME": "${HOME}"}}
	f.Fuzz(func(_ *testing.T, s string) { in.text(s) })
}

func TestTaskEnv_Order(t *testing.T) {
	t.Parallel()
	got := taskEnv(
		map[string]string{"A": "host", "PATH": "/bin", "NOMAD_X": "host"},
		map[string]string{"NOMAD_X": "nomad"},
		map[string]string{"A": "user ${NOMAD_X}", "B": "user", "C": "user"},
		map[string]string{"B": "device", "C": "device"},
		map[string]string{"C": "template"}, &api.Node{},
	)
	want := map[string]string{"A": "user nomad", "PATH": "/bin", "NOMAD_X": "nomad", "B": "device", "C": "template"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestHostEnv_HidesCredentials(t *testing.T) {
	for _, k := range []string{"NOMAD_TOKEN", "CONSUL_HTTP_ADDR", "VAULT_TOKEN", "DATABASE_URL", "MY_API_KEY", "DB_PASSWORD", "GITHUB_TOKEN", "HETEROFLOW_TOKEN", "AWS_REGION", "PGPASSWORD"} {
		t.Setenv(k, "x")
	}
	t.Setenv("LANG_TEST", "kept")
	env := hostEnv()
	for _, k := range []string{"NOMAD_TOKEN", "CONSUL_HTTP_ADDR", "VAULT_TOKEN", "DATABASE_URL", "MY_API_KEY", "DB_PASSWORD", "GITHUB_TOKEN", "HETEROFLOW_TOKEN", "AWS_REGION", "PGPASSWORD"} {
		if _, ok := env[k]; ok {
			t.Errorf("%s is inherited", k)
		}
	}
	if env["LANG_TEST"] != "kept" {
		t.Error("a harmless variable is not inherited")
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	d := allocDir{"/data/alloc/1"}
	image := pathsFor(d, "web", driverpb.DriverCapabilities_IMAGE)
	none := pathsFor(d, "web", driverpb.DriverCapabilities_NONE)
	if image.local != "/local" || none.local != "/data/alloc/1/web/local" {
		t.Errorf("paths %+v, %+v", image, none)
	}
	for in, want := range map[string]string{
		"/secrets/env": "/data/alloc/1/web/secrets/env", "/alloc/data/x": "/data/alloc/1/alloc/data/x", "local/x": "/data/alloc/1/web/local/x",
		"/localhost": "/data/alloc/1/web//localhost",
	} {
		if got := image.hostPath(d, "web", in); got != want {
			t.Errorf("%s lies at %s, want %s", in, got, want)
		}
	}
}

func TestParseEnvFile(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	text := "# note\n\nA=1\nexport B = two words \nC=\"a\\nb\"\nD='$x'\nE=\nF=a=b\n"
	if err := parseEnvFile([]byte(text), got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"A": "1", "B": "two words", "C": "a\nb", "D": "$x", "E": "", "F": "a=b"}, got); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"no equals", "=x", `A="\q"`} {
		if err := parseEnvFile([]byte(bad), got); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func FuzzParseEnvFile(f *testing.F) {
	f.Add([]byte("A=1\nexport B=\"x\"\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		env := map[string]string{}
		if err := parseEnvFile(b, env); err == nil {
			if _, ok := env[""]; ok {
				t.Error("a variable without name")
			}
		}
	})
}

// TestRestartPolicy_Property: never more starts in an interval than allowed, and mode delay never gives up.
func TestRestartPolicy_Property(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := restartPolicy{
			attempts: rapid.IntRange(0, 5).Draw(rt, "attempts"), interval: time.Duration(rapid.IntRange(1, 100).Draw(rt, "interval")) * time.Second,
			delay: time.Duration(rapid.IntRange(0, 10).Draw(rt, "delay")) * time.Second, mode: rapid.SampledFrom([]string{"fail", "delay"}).Draw(rt, "mode"),
			onSuccess: rapid.Bool().Draw(rt, "service"),
		}
		var s restartState
		now := time.Unix(1000, 0)
		inInterval, from := 0, time.Time{}
		for range rapid.IntRange(1, 20).Draw(rt, "ends") {
			now = now.Add(time.Duration(rapid.IntRange(0, 60).Draw(rt, "ran")) * time.Second)
			success := rapid.Bool().Draw(rt, "success")
			v := p.decide(&s, success, now)
			switch {
			case success && !p.onSuccess:
				if v.again || v.failed {
					rt.Fatalf("a batch task that ended well: %+v", v)
				}
				return
			case !v.again:
				if p.mode == "delay" && p.attempts > 0 {
					rt.Fatalf("mode delay gave up: %+v", v)
				}
				if v.reason == "" {
					rt.Fatal("gave up without a reason")
				}
				return
			}
			if v.delay < p.delay {
				rt.Fatalf("delay %s is below %s", v.delay, p.delay)
			}
			if from.IsZero() || now.Sub(from) > p.interval {
				inInterval, from = 0, now
			}
			inInterval++
			if p.mode == "fail" && inInterval > p.attempts {
				rt.Fatalf("%d restarts within %s, %d allowed", inInterval, p.interval, p.attempts)
			}
			now = now.Add(v.delay)
		}
	})
}
