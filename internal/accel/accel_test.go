package accel

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseMemoryMiB(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{
		"20GiB": 20480, "20480 MiB": 20480, "20GB": 19074, "512MB": 489, "1.5GiB": 1536, "1TiB": 1 << 20, " 8gib ": 8192,
	} {
		if got, err := ParseMemoryMiB(text); err != nil || got != want {
			t.Errorf("%q: want %d MiB, got %d, %v", text, want, got, err)
		}
	}
	for text, wantHint := range map[string]string{
		"20": `"20GiB"`, "": "unit", "GiB": "unit", "-1GiB": "unit", "20XB": "MiB, GiB", "0GiB": "whole cards", "1.2.3GiB": "not a size", "999999999TiB": "more than any card",
	} {
		_, err := ParseMemoryMiB(text)
		if err == nil || !strings.Contains(err.Error(), wantHint) {
			t.Errorf("%q: want an error that mentions %s, got %v", text, wantHint, err)
		}
	}
}

func FuzzParseMemoryMiB(f *testing.F) {
	for _, s := range []string{"20GiB", "20", "1e9GiB", "9999999999999999999999999GiB", "."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if mib, err := ParseMemoryMiB(s); (err == nil) != (mib > 0) {
			t.Errorf("%q: %d, %v", s, mib, err)
		}
	})
}

func TestBlock_Refusals(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		block     Block
		wantField string
		wantText  string
	}{
		"negative count":          {Block{Count: -1}, "count", "negative"},
		"compute too small":       {Block{Memory: "1GiB", Compute: 9}, "compute", "10–100"},
		"compute too large":       {Block{Memory: "1GiB", Compute: 101}, "compute", "10–100"},
		"compute without memory":  {Block{Compute: 30}, "compute", "memory"},
		"memory without a unit":   {Block{Memory: "20"}, "memory", `"20GiB"`},
		"unknown brand":           {Block{Vendor: []string{"nvdia"}}, "vendor", "write one of nvidia"},
		"unknown qos":             {Block{QoS: "platinum"}, "qos", "gold, silver or bronze"},
		"a pattern that is empty": {Block{Model: []string{""}}, "model", "A100*"},
		"a pattern cut short":     {Block{Model: []string{"A[1"}}, "model", "A100*"},
	} {
		_, err := tc.block.Ask()
		var fe *FieldError
		if !errors.As(err, &fe) || fe.Field != tc.wantField || !strings.Contains(err.Error(), tc.wantText) {
			t.Errorf("%s: want field %s and %q, got %v", name, tc.wantField, tc.wantText, err)
		}
	}
}

func TestBlock_Ask(t *testing.T) {
	t.Parallel()
	got, err := Block{Memory: "20GB", Compute: 30, Vendor: []string{"NVIDIA", "ascend"}, Model: []string{"A100*"}}.Ask()
	if err != nil {
		t.Fatal(err)
	}
	want := Ask{Count: 1, MemoryMiB: 19074, ComputePct: 30, Vendors: []Vendor{NVIDIA, Ascend}, Models: []string{"A100*"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ask (-want +got):\n%s", diff)
	}
	if !got.Accepts(NVIDIA, "a100-SXM4-80GB") || got.Accepts(AMD, "A100") || got.Accepts(NVIDIA, "H100") {
		t.Error("brands and models the ask accepts are wrong")
	}
	if got.Units(1024) != 19 {
		t.Errorf("19074 MiB needs 19 slices of 1 GiB, got %d", got.Units(1024))
	}
	if s := got.String(); s != "1 card with 18.6 GiB and 30 % compute, brand nvidia or ascend, model A100*" {
		t.Errorf("sentence: %s", s)
	}
}

func TestOwnEnv_ForDriversThatKnowNoGrants(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cards []Card
		want  map[string]string
	}{
		"none":                       {nil, map[string]string{}},
		"nvidia":                     {[]Card{{Vendor: NVIDIA, UUID: "GPU-a", Index: 3}, {Vendor: NVIDIA, UUID: "GPU-b", Index: -1}}, map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}},
		"ascend":                     {[]Card{{Vendor: Ascend, UUID: "x", Index: 0}, {Vendor: Ascend, UUID: "y", Index: 5}}, map[string]string{"ASCEND_VISIBLE_DEVICES": "0,5", "ASCEND_RT_VISIBLE_DEVICES": "0,5"}},
		"a number that is not known": {[]Card{{Vendor: Ascend, UUID: "x", Index: -1}, {Vendor: Ascend, UUID: "y", Index: 5}}, map[string]string{}},
		"to be divided first":        {[]Card{{Vendor: NVIDIA, UUID: "GPU-a", Form: MIG}}, map[string]string{}},
	} {
		if diff := cmp.Diff(tc.want, OwnEnv(tc.cards)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestVisibleEnv_OnlyTheGrantIsVisible(t *testing.T) {
	t.Parallel()
	none := VisibleEnv(nil)
	for _, vars := range visibleVars {
		for _, show := range vars {
			if v := none[show.name]; v != "void" && v != "-1" && v != noOrdinal {
				t.Errorf("no grant: %s=%q must hide every card", show.name, v)
			}
		}
	}
	env := VisibleEnv([]Card{
		{Vendor: NVIDIA, UUID: "GPU-a", Index: 3},
		{Vendor: NVIDIA, UUID: "GPU-b", Index: 5},
		{Vendor: Ascend, UUID: "NPU-x", Index: 7},
		{Vendor: Intel, UUID: "GPU-i", Index: 2},
		{Vendor: Enflame, UUID: "GCU-e", Index: 1},
	})
	for name, want := range map[string]string{
		"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "ASCEND_RT_VISIBLE_DEVICES": "7", "HIP_VISIBLE_DEVICES": "-1", "XPU_VISIBLE_DEVICES": "-1",
		"METAX_VISIBLE_DEVICES": "void", "IX_VISIBLE_DEVICES": "void", "TOPS_VISIBLE_DEVICES": "1", "ENFLAME_VISIBLE_DEVICES": "1", "ZE_AFFINITY_MASK": "2",
	} {
		if env[name] != want {
			t.Errorf("%s: want %q, got %q", name, want, env[name])
		}
	}
}

func TestMakes_TheLeastQualityThatIsEnough(t *testing.T) {
	t.Parallel()
	both := []Mode{ModeHAMi, ModeVNPU}
	for _, tc := range []struct {
		mode  Mode
		form  Form
		modes []Mode
		qos   QoS
		want  bool
	}{
		{ModeVNPU, Shared, both, Gold, true},
		{ModeHAMi, Shared, both, Gold, false},
		{ModeHAMi, Shared, both, Silver, true},
		{ModeVNPU, Shared, both, Silver, false},
		{ModeVNPU, Shared, []Mode{ModeVNPU}, Silver, true},
		{ModeVNPU, Shared, []Mode{ModeHAMi}, Gold, false},
		{ModeVNPU, Shared, both, Bronze, false},
		{ModeMIG, Shared, []Mode{ModeMIG}, Gold, false},
		{ModeMIG, MIG, nil, "", true},
		{ModeVNPU, Whole, both, Gold, false},
	} {
		if got := Makes(tc.mode, tc.form, tc.modes, tc.qos); got != tc.want {
			t.Errorf("%s of %v as %s in the form %s: %v", tc.mode, tc.modes, tc.qos, tc.form, got)
		}
	}
}

func TestVisibleEnvInside_CountsTheCardsOfTheContainer(t *testing.T) {
	t.Parallel()
	two := func(v Vendor) []Card {
		return []Card{{Vendor: v, UUID: "a", Index: 6}, {Vendor: v, UUID: "b", Index: 3}}
	}
	for name, tc := range map[string]struct {
		cards  []Card
		names  map[string]string
		host   map[string]string
		inside map[string]string // empty: it is not there
	}{
		"nvidia": {
			cards: two(NVIDIA),
			host:  map[string]string{"NVIDIA_VISIBLE_DEVICES": "a,b", "CUDA_VISIBLE_DEVICES": "a,b"},
		},
		"ascend": {
			cards:  two(Ascend),
			host:   map[string]string{"ASCEND_VISIBLE_DEVICES": "6,3", "ASCEND_RT_VISIBLE_DEVICES": "3,6"},
			inside: map[string]string{"ASCEND_VISIBLE_DEVICES": "6,3", "ASCEND_RT_VISIBLE_DEVICES": "0,1"},
		},
		"amd": {
			cards:  two(AMD),
			host:   map[string]string{"AMD_VISIBLE_DEVICES": "6,3", "ROCR_VISIBLE_DEVICES": "6,3", "HIP_VISIBLE_DEVICES": "0,1"},
			inside: map[string]string{"AMD_VISIBLE_DEVICES": "6,3", "ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1"},
		},
		"hygon": {
			cards:  two(Hygon),
			host:   map[string]string{"HYGON_VISIBLE_DEVICES": "6,3", "HIP_VISIBLE_DEVICES": "6,3"},
			inside: map[string]string{"HYGON_VISIBLE_DEVICES": "6,3", "HIP_VISIBLE_DEVICES": "0,1"},
		},
		"intel": {
			cards:  two(Intel),
			host:   map[string]string{"ZE_AFFINITY_MASK": "6,3"},
			inside: map[string]string{"ZE_AFFINITY_MASK": "0,1"},
		},
		"mthreads": {
			cards:  two(MThreads),
			host:   map[string]string{"MTHREADS_VISIBLE_DEVICES": "6,3", "MUSA_VISIBLE_DEVICES": "6,3"},
			inside: map[string]string{"MTHREADS_VISIBLE_DEVICES": "6,3", "MUSA_VISIBLE_DEVICES": ""},
		},
		"cambricon": {
			cards:  two(Cambricon),
			host:   map[string]string{"CAMBRICON_VISIBLE_DEVICES": "6,3", "MLU_VISIBLE_DEVICES": "6,3"},
			inside: map[string]string{"CAMBRICON_VISIBLE_DEVICES": "6,3", "MLU_VISIBLE_DEVICES": ""},
		},
		"biren": {
			cards:  two(Biren),
			host:   map[string]string{"BIREN_VISIBLE_DEVICES": "6,3", "SUPA_VISIBLE_DEVICES": "6,3"},
			inside: map[string]string{"BIREN_VISIBLE_DEVICES": "6,3", "SUPA_VISIBLE_DEVICES": ""},
		},
		"biren by its shares": {
			cards: two(Biren), names: map[string]string{"a": "40", "b": "41"},
			host: map[string]string{"BIREN_VISIBLE_DEVICES": "40,41", "SUPA_VISIBLE_DEVICES": "40,41"},
		},
		"kunlunxin": {
			cards:  two(Kunlunxin),
			host:   map[string]string{"XPU_VISIBLE_DEVICES": "6,3", "CUDA_VISIBLE_DEVICES": "6,3"},
			inside: map[string]string{"XPU_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""},
		},
		"kunlunxin beside nvidia": {
			cards:  append(two(Kunlunxin), Card{Vendor: NVIDIA, UUID: "GPU-n"}),
			host:   map[string]string{"XPU_VISIBLE_DEVICES": "6,3", "CUDA_VISIBLE_DEVICES": "6,3"},
			inside: map[string]string{"XPU_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "GPU-n"},
		},
		"metax": {
			cards:  two(MetaX),
			host:   map[string]string{"METAX_VISIBLE_DEVICES": "6,3", "CUDA_VISIBLE_DEVICES": "6,3"},
			inside: map[string]string{"METAX_VISIBLE_DEVICES": "6,3", "CUDA_VISIBLE_DEVICES": ""},
		},
		"iluvatar": {
			cards:  two(Iluvatar),
			host:   map[string]string{"IX_VISIBLE_DEVICES": "6,3", "CUDA_VISIBLE_DEVICES": "6,3"},
			inside: map[string]string{"IX_VISIBLE_DEVICES": "6,3", "CUDA_VISIBLE_DEVICES": ""},
		},
		"enflame": {
			cards:  two(Enflame),
			host:   map[string]string{"ENFLAME_VISIBLE_DEVICES": "6,3", "TOPS_VISIBLE_DEVICES": "6,3"},
			inside: map[string]string{"ENFLAME_VISIBLE_DEVICES": "6,3", "TOPS_VISIBLE_DEVICES": ""},
		},
		"a part without a number": {
			cards: []Card{{Vendor: AMD, UUID: "p", Index: -1}},
			host:  map[string]string{"AMD_VISIBLE_DEVICES": "void", "ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"},
		},
	} {
		host := VisibleEnvAs(tc.cards, tc.names)
		inside, unset := VisibleEnvInside(tc.cards, tc.names)
		if tc.inside == nil {
			tc.inside = tc.host
		}
		for variable, want := range tc.host {
			if host[variable] != want {
				t.Errorf("%s: %s is %q on the host, want %q", name, variable, host[variable], want)
			}
			want = tc.inside[variable]
			if got, there := inside[variable]; got != want || there != (want != "") || slices.Contains(unset, variable) == there {
				t.Errorf("%s: %s is %q in a container, want %q; not there are %v", name, variable, got, want, unset)
			}
		}
		if len(inside)+len(unset) != len(host) {
			t.Errorf("%s: of %d variables there are %d in a container and %d not", name, len(host), len(inside), len(unset))
		}
	}
}

func TestCard_Names(t *testing.T) {
	t.Parallel()
	mib := uint64(81559)
	c := Card{Vendor: NVIDIA, Model: "A100-SXM4-80GB", UUID: "GPU-1", Form: Shared, MemoryMiB: &mib}
	if got, want := c.DeviceID(), "nvidia/vgpu/A100-SXM4-80GB-"+c.ShortID(); got != want {
		t.Errorf("device id: want %s, got %s", want, got)
	}
	if c.Slices(1024) != 79 {
		t.Errorf("81559 MiB has 79 slices of 1 GiB, got %d", c.Slices(1024))
	}
	if id := c.SliceID(7); id[0] != 'c' || len(id) != 11 {
		t.Errorf("slice id %q must start with a letter and be short", id)
	}
	c.MemoryMiB = nil
	if c.Slices(1024) != 0 {
		t.Error("a card of unknown memory has no slices")
	}
	c.Form = Whole
	if got := c.DeviceID(); got != "nvidia/gpu/A100-SXM4-80GB" {
		t.Errorf("whole: %s", got)
	}
}

func TestIsCard(t *testing.T) {
	t.Parallel()
	for id, want := range map[[2]string]bool{
		{"nvidia", "gpu"}: true, {"ascend", "vgpu"}: true, {"nvidia", "mig"}: true, {"intel", "gpu"}: true,
		{"intel", "fpga"}: false, {"amd", "card"}: false, {"acme", "gpu"}: false,
	} {
		if got := IsCard(id[0], id[1]); got != want {
			t.Errorf("%v: %t", id, got)
		}
	}
}

func TestModelName(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB", "NVIDIA H100 80GB HBM3": "H100-80GB-HBM3", "ERR!": "unknown", "": "unknown", "NVIDIA": "NVIDIA", "Tesla T4": "Tesla-T4",
	} {
		if got := ModelName(NVIDIA, raw); got != want {
			t.Errorf("%q: want %q, got %q", raw, want, got)
		}
	}
}
