package share

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// joiner joins what it gets by commas.
type joiner struct{ *stub }

func (joiner) Join(setups []Setup) (Setup, error) {
	if len(setups) > 2 {
		return Setup{}, errors.New("one daemon serves two cards at most")
	}
	var names []string
	for _, s := range setups {
		names = append(names, s.Visible)
	}
	return Setup{Env: map[string]string{"PIPE": "/run/" + strings.Join(names, "+")}, Runtime: "nvidia"}, nil
}

func TestCombine(t *testing.T) {
	t.Parallel()
	part := func(b Backend, card string, s Setup) Made {
		i := b.Describe()
		return Made{Held: Held{Ask: sliceOf("t", card, 1, ""), Backend: b.Name()}, Isolation: &i, Setup: s, by: b}
	}
	env := func(name, value string) Setup { return Setup{Env: map[string]string{name: value}} }
	hami, mps := newStub("hami", accel.Silver), joiner{newStub("mps", accel.Silver)}
	bronze := newStub("bronze", accel.Bronze)
	for name, c := range map[string]struct {
		made     []Made
		want     Combined
		wantFail string
	}{
		"whole cards": {made: []Made{{Held: Held{Ask: wholeOf("t", "GPU-1")}}}, want: Combined{}},
		"beside each other": {
			made: []Made{
				part(hami, "GPU-1", Setup{Env: map[string]string{"L_0": "1", "ALL": "x"}, Mounts: []Mount{{Source: "/a", Target: "/b"}}, Nodes: []string{"/dev/v0"}, Instead: true, Visible: "v0"}),
				part(bronze, "GPU-2", Setup{Env: map[string]string{"L_1": "2", "ALL": "x"}, Mounts: []Mount{{Source: "/a", Target: "/b"}}, Runtime: "nvidia", IPCHost: true}),
			},
			want: Combined{
				Setup: Setup{
					Env: map[string]string{"L_0": "1", "L_1": "2", "ALL": "x"}, Mounts: []Mount{{Source: "/a", Target: "/b"}},
					Nodes: []string{"/dev/v0"}, Runtime: "nvidia", IPCHost: true,
				},
				Cards: map[string]Setup{"GPU-1": {Visible: "v0", Instead: true, Nodes: []string{"/dev/v0"}}, "GPU-2": {Runtime: "nvidia"}}, QoS: accel.Bronze,
			},
		},
		"joined": {
			made: []Made{part(mps, "GPU-1", Setup{Env: map[string]string{"PIPE": "1"}, Visible: "a"}), part(mps, "GPU-2", Setup{Env: map[string]string{"PIPE": "2"}, Visible: "b"})},
			want: Combined{Setup: Setup{Env: map[string]string{"PIPE": "/run/a+b"}, Runtime: "nvidia"}, Cards: map[string]Setup{"GPU-1": {Visible: "a", Runtime: "nvidia"}, "GPU-2": {Visible: "b"}}, QoS: accel.Silver},
		},
		"one alone is not joined": {
			made: []Made{part(mps, "GPU-1", env("PIPE", "1"))},
			want: Combined{Setup: env("PIPE", "1"), Cards: map[string]Setup{"GPU-1": {}}, QoS: accel.Silver},
		},
		"not to be joined": {made: []Made{part(mps, "GPU-1", Setup{}), part(mps, "GPU-2", Setup{}), part(mps, "GPU-3", Setup{})}, wantFail: "use 3 cards of nvidia by mps in one task: one daemon"},
		"two values":       {made: []Made{part(hami, "GPU-1", env("X", "1")), part(bronze, "GPU-2", env("X", "2"))}, wantFail: `card GPU-2 by bronze needs X="2"`},
		"two mounts": {
			made:     []Made{part(hami, "GPU-1", Setup{Mounts: []Mount{{Source: "/a", Target: "/t"}}}), part(bronze, "GPU-2", Setup{Mounts: []Mount{{Source: "/b", Target: "/t"}}})},
			wantFail: "needs /b at /t",
		},
		"two runtimes": {made: []Made{part(hami, "GPU-1", Setup{Runtime: "a"}), part(bronze, "GPU-2", Setup{Runtime: "b"})}, wantFail: "the container runtime b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Combine(c.made)
			if c.wantFail != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantFail) {
					t.Fatalf("got %v, want %q", err, c.wantFail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("combined (-want +got):\n%s", diff)
			}
		})
	}
}
