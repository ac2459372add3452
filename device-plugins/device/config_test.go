package device

import (
	"slices"
	"strings"
	"testing"

	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/host"
)

func TestConfig_RefusalsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*Config)
		want   string
	}{
		"slice without unit":    {func(c *Config) { c.SliceMemory = "1" }, `write "1GiB"`},
		"slices too small":      {func(c *Config) { c.SliceMemory = "1MiB" }, `write "256MiB"`},
		"period":                {func(c *Config) { c.FingerprintPeriod = "5" }, `write for example "5s"`},
		"period zero":           {func(c *Config) { c.FingerprintPeriod = "0s" }, `not between 100ms and 10m: write for example "5s"`},
		"period below zero":     {func(c *Config) { c.FingerprintPeriod = "-5s" }, `not between 100ms and 10m: write for example "5s"`},
		"period too short":      {func(c *Config) { c.FingerprintPeriod = "1ns" }, `"1ns" is not between 100ms and 10m`},
		"period just too short": {func(c *Config) { c.FingerprintPeriod = "99.9ms" }, `not between 100ms and 10m`},
		"period too long":       {func(c *Config) { c.FingerprintPeriod = "10m1ns" }, `not between 100ms and 10m`},
		"period without end":    {func(c *Config) { c.FingerprintPeriod = "2000000h" }, `not between 100ms and 10m`},
		"period past any clock": {func(c *Config) { c.FingerprintPeriod = "99999999h" }, `is not a time: write for example "5s"`},
		"samples":               {func(c *Config) { c.BadSamples = 0 }, "write 1 or more"},
		"brand":                 {func(c *Config) { c.Vendors = []string{"nvidea"} }, "write one of nvidia"},
		"server":                {func(c *Config) { c.Server = "placement:3333" }, `write for example "https://`},
		"state folder":          {func(c *Config) { c.StateDir = "" }, "write a folder"},
		"form":                  {func(c *Config) { c.Forms = map[string]string{"A100*": "partition"} }, `write "whole", "shared", "mig" or "auto"`},
		"pattern":               {func(c *Config) { c.Forms = map[string]string{"A[": "whole"} }, "write a UUID"},
		"hold":                  {func(c *Config) { c.RecoveryHold = "-1s" }, `write for example "10s"`},
		"condition":             {func(c *Config) { c.UnhealthyOn = []string{"heat"} }, `write "ecc", "memory_repair"`},
		"file of metrics":       {func(c *Config) { c.TextfileDCGM = true }, "write textfile_dir"},
		"whose fault":           {func(c *Config) { c.XidApplication = append(c.XidApplication, 48) }, "48 is in both"},
		"a pattern twice":       {func(c *Config) { c.Forms = map[string]string{"A40*": "whole", "a40*": "shared"} }, "write it once"},
		"several things at one": {func(c *Config) { c.SliceMemory, c.BadSamples = "x", 0 }, "bad_samples"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := DefaultConfig()
			tc.change(&cfg)
			if _, err := cfg.check(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want one with %q", err, tc.want)
			}
		})
	}
	if _, err := DefaultConfig().check(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	for _, period := range []string{"100ms", "1s", "600s"} {
		cfg := DefaultConfig()
		cfg.FingerprintPeriod = period
		if set, err := cfg.check(); err != nil || set.period < minPeriod || set.period > maxPeriod {
			t.Errorf("period %s: %s, %v", period, set.period, err)
		}
	}
}

func TestConfig_MostExactRuleWins(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.Forms = map[string]string{
		"*": "shared", "A100*": "whole", "ascend/910B*": "auto", "nvidia/1": "shared", "GPU-x": "auto", "a100-sxm4-*": "shared",
	}
	set, err := cfg.check()
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		card accel.Card
		want accel.Form
	}{
		"any":             {accel.Card{Vendor: accel.AMD, Model: "MI300X", UUID: "u"}, accel.Shared},
		"model":           {accel.Card{Vendor: accel.NVIDIA, Model: "A100-PCIE-40GB", UUID: "u"}, accel.Whole},
		"longer model":    {accel.Card{Vendor: accel.NVIDIA, Model: "A100-SXM4-80GB", UUID: "u"}, accel.Shared},
		"brand and model": {accel.Card{Vendor: accel.Ascend, Model: "910B3", UUID: "u"}, ""},
		"index":           {accel.Card{Vendor: accel.NVIDIA, Model: "A100-PCIE-40GB", Index: 1, UUID: "u"}, accel.Shared},
		"uuid":            {accel.Card{Vendor: accel.NVIDIA, Model: "A100-PCIE-40GB", Index: 1, UUID: "GPU-x"}, ""},
	}
	for name, tc := range cases {
		if got := set.fixedForm(tc.card); got != tc.want {
			t.Errorf("%s: form %q, want %q", name, got, tc.want)
		}
	}
}

// An administrator copies the address from whatever tool is at hand, and what is withheld is withheld with all its parts.
func TestConfig_IgnoredCards(t *testing.T) {
	t.Parallel()
	board, part := good("GPU-0a", "0000:3b:00.0"), good("MIG-1", "0000:3b:00.0")
	part.Form, part.Parent = accel.Partition, board.UUID
	function := part
	function.PCIAddress = "0000:3b:00.2"
	for id, want := range map[string]bool{
		"GPU-0a": true, "gpu-0A": true, "0000:3b:00.0": true, "0000:3B:00.0": true, "00000000:3B:00.0": true, "3b:00.0": true, " 0000:3b:00.0 ": true,
		"": false, "GPU-0": false, "0001:3b:00.0": false, "0000:3b:01.0": false, "0": false, "3b": false,
	} {
		set := settings{Config: Config{IgnoredGPUIDs: []string{id}}}
		for _, c := range []accel.Card{board, part, function} {
			if got := set.ignores(c); got != want {
				t.Errorf("%q ignores %s at %s: %v", id, c.UUID, c.PCIAddress, got)
			}
		}
	}
	if (settings{Config: Config{IgnoredGPUIDs: []string{""}}}).ignores(accel.Card{UUID: "u"}) {
		t.Error("an empty id ignores a card without a place")
	}
}

// The lists of numbers arrive as an agent sends them, and replace the defaults.
func TestConfigure_ListsOfXids(t *testing.T) {
	t.Parallel()
	p := start(t, nil)
	for _, tc := range []struct {
		config                map[string]any
		hardware, application []int
	}{
		{map[string]any{}, hardwareXids(), applicationXids()},
		{map[string]any{"xid_hardware": []any{79}, "xid_application": []any{}}, []int{79}, nil},
	} {
		sent, err := host.EncodeConfig(p.ConfigSchema(), tc.config)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Configure(sent); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(p.set.XidHardware, tc.hardware) || !slices.Equal(p.set.XidApplication, tc.application) {
			t.Errorf("%v: lists %v and %v", tc.config, p.set.XidHardware, p.set.XidApplication)
		}
	}
}
