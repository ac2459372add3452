package device

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/toolout"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/nomadplugin/hclspec"
)

// Config is the plugin's config block.
type Config struct {
	Enabled           bool              `codec:"enabled"`
	Vendors           []string          `codec:"vendors"`
	Forms             map[string]string `codec:"forms"`
	SliceMemory       string            `codec:"slice_memory"`
	FingerprintPeriod string            `codec:"fingerprint_period"`
	BadSamples        int               `codec:"bad_samples"`
	RecoveryHold      string            `codec:"recovery_hold"`
	IgnoredGPUIDs     []string          `codec:"ignored_gpu_ids"`
	SimConfig         string            `codec:"sim_config"`
	NvidiaSMI         string            `codec:"nvidia_smi"`
	HAMiLibrary       string            `codec:"hami_library"`
	UnhealthyOn       []string          `codec:"unhealthy_on"`
	TextfileDir       string            `codec:"textfile_dir"`
	TextfileDCGM      bool              `codec:"textfile_dcgm"`
	XidHardware       []int             `codec:"xid_hardware"`
	XidApplication    []int             `codec:"xid_application"`
	Root              string            `codec:"root"`
	StateDir          string            `codec:"state_dir"`
	Server            string            `codec:"server"`
	Token             string            `codec:"token"`
}

// DefaultConfig is the config of an empty block.
func DefaultConfig() Config {
	return Config{
		Enabled: true, SliceMemory: "1GiB", FingerprintPeriod: "5s", BadSamples: 3, RecoveryHold: "10s", NvidiaSMI: "nvidia-smi", Root: "/",
		HAMiLibrary: "/usr/local/vgpu/libvgpu.so", // where HAMi's own charts put it
		StateDir:    "/var/lib/heteroflow", XidHardware: hardwareXids(), XidApplication: applicationXids(),
	}
}

func configSchema() *hclspec.Spec {
	d := DefaultConfig()
	list := func(name string) *hclspec.Spec {
		return nomadplugin.Default(nomadplugin.Attr(name, "list(string)", false), "[]")
	}
	return nomadplugin.Object(nomadplugin.Fields{
		"enabled":            nomadplugin.OptBool("enabled", d.Enabled),
		"vendors":            list("vendors"),
		"forms":              nomadplugin.BlockAttrs("forms", "string"),
		"slice_memory":       nomadplugin.OptString("slice_memory", d.SliceMemory),
		"fingerprint_period": nomadplugin.OptString("fingerprint_period", d.FingerprintPeriod),
		"bad_samples":        nomadplugin.OptNumber("bad_samples", int64(d.BadSamples)),
		"recovery_hold":      nomadplugin.OptString("recovery_hold", d.RecoveryHold),
		"ignored_gpu_ids":    list("ignored_gpu_ids"),
		"sim_config":         nomadplugin.OptString("sim_config", ""),
		"nvidia_smi":         nomadplugin.OptString("nvidia_smi", d.NvidiaSMI),
		"hami_library":       nomadplugin.OptString("hami_library", d.HAMiLibrary),
		"unhealthy_on":       list("unhealthy_on"),
		"textfile_dir":       nomadplugin.OptString("textfile_dir", ""),
		"textfile_dcgm":      nomadplugin.OptBool("textfile_dcgm", false),
		"xid_hardware":       nomadplugin.Default(nomadplugin.Attr("xid_hardware", "list(number)", false), literal(d.XidHardware)),
		"xid_application":    nomadplugin.Default(nomadplugin.Attr("xid_application", "list(number)", false), literal(d.XidApplication)),
		"root":               nomadplugin.OptString("root", d.Root),
		"state_dir":          nomadplugin.OptString("state_dir", d.StateDir),
		"server":             nomadplugin.OptString("server", ""),
		"token":              nomadplugin.OptString("token", ""),
	})
}

// hardwareXids are the errors of NVIDIA's driver that speak of a sick card, applicationXids those that a program makes.
// See https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, and for 46 and 48 what NVIDIA drains a node for:
// https://docs.nvidia.com/health-validation/reference/checks/xid.md. The catalogue has a card reset after 109, which programs
// cause so often that NVIDIA's own plugin for Kubernetes leaves the card in use, as here.
func hardwareXids() []int { return []int{46, 48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140} }

func applicationXids() []int { return []int{13, 31, 43, 45, 68, 69, 109} }

// literal is a list as HCL.
func literal(numbers []int) string { return strings.ReplaceAll(fmt.Sprint(numbers), " ", ", ") }

// minPeriod and maxPeriod bound the time between two readings: with less the machine would do little but start tools, with
// more a dead card would be given away for hours.
const (
	minPeriod = 100 * time.Millisecond
	maxPeriod = 10 * time.Minute
)

// settings is a Config that was checked.
type settings struct {
	Config
	sliceMiB uint64
	period   time.Duration
	hold     time.Duration
	rules    []formRule
}

// check reads the config. The error joins everything that is wrong, with what to write instead.
func (c Config) check() (settings, error) {
	s := settings{Config: c}
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	var err error
	if s.sliceMiB, err = accel.ParseMemoryMiB(c.SliceMemory); err != nil {
		bad("slice_memory: %w", err)
	} else if s.sliceMiB < 64 {
		bad(`slice_memory: %q makes too many slices: write "256MiB" or more`, c.SliceMemory)
	}
	if s.period, err = time.ParseDuration(c.FingerprintPeriod); err != nil {
		bad(`fingerprint_period: %q is not a time: write for example "5s"`, c.FingerprintPeriod)
	} else if s.period < minPeriod || s.period > maxPeriod {
		bad(`fingerprint_period: %q is not between 100ms and 10m: write for example "5s"`, c.FingerprintPeriod)
	}
	if s.hold, err = time.ParseDuration(c.RecoveryHold); err != nil || s.hold < 0 {
		bad(`recovery_hold: %q is not a time: write for example "10s"`, c.RecoveryHold)
	}
	if c.BadSamples < 1 {
		bad("bad_samples: %d is too few: write 1 or more", c.BadSamples)
	}
	for _, name := range c.UnhealthyOn {
		if !slices.ContainsFunc(conditions, func(c condition) bool { return c.name == name }) {
			bad(`unhealthy_on: %q is not known: write "ecc", "memory_repair", "thermal", "power_brake" or "link_down"`, name)
		}
	}
	if c.TextfileDCGM && c.TextfileDir == "" {
		bad(`textfile_dcgm: there is no file to write to: write textfile_dir, for example "/var/lib/node_exporter/textfile_collector"`)
	}
	for _, xid := range c.XidHardware {
		if slices.Contains(c.XidApplication, xid) {
			bad("xid_hardware, xid_application: %d is in both: write it in one of them", xid)
		}
	}
	for _, v := range c.Vendors {
		if _, err := accel.ParseVendor(v); err != nil {
			bad("vendors: %w", err)
		}
	}
	if c.Server != "" {
		u, err := url.Parse(c.Server)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			bad(`server: %q is not an address: write for example "https://placement.example:3333"`, c.Server)
		}
	}
	if c.HAMiLibrary != "" && !strings.HasPrefix(c.HAMiLibrary, "/") {
		bad(`hami_library: %q is no path of a file: write for example "/usr/local/vgpu/libvgpu.so", or "" not to look for it`, c.HAMiLibrary)
	}
	if c.StateDir == "" {
		bad(`state_dir: it is empty: write a folder that outlives a restart, for example "/var/lib/heteroflow"`)
	}
	for key, value := range c.Forms {
		rule, err := newFormRule(key, value)
		if err != nil {
			bad("forms: %w", err)
		}
		s.rules = append(s.rules, rule)
	}
	for i, r := range s.rules {
		if slices.ContainsFunc(s.rules[:i], func(o formRule) bool { return o.pattern == r.pattern }) {
			bad("forms: %q is there twice, case does not count: write it once", r.pattern)
		}
	}
	sort.Slice(s.rules, func(i, j int) bool {
		a, b := s.rules[i].pattern, s.rules[j].pattern
		return len(a) > len(b) || len(a) == len(b) && a < b
	})
	return s, errors.Join(problems...)
}

// wants tells whether detectors of this brand are to run.
func (s settings) wants(v accel.Vendor) bool {
	return len(s.Vendors) == 0 || slices.ContainsFunc(s.Vendors, func(name string) bool {
		return strings.EqualFold(strings.TrimSpace(name), string(v))
	})
}

// ignores tells whether the card is not to be offered, by UUID or PCI address in any form that a tool prints. The parts of
// a card go with it.
func (s settings) ignores(c accel.Card) bool {
	return slices.ContainsFunc(s.IgnoredGPUIDs, func(id string) bool {
		if id = strings.TrimSpace(id); strings.EqualFold(id, c.UUID) || id != "" && strings.EqualFold(id, c.Parent) {
			return true
		}
		place := toolout.PCI(id)
		if c.Form == accel.Partition { // it may be another function of its board
			board, _, _ := strings.Cut(place, ".")
			return board != "" && strings.HasPrefix(c.PCIAddress, board+".")
		}
		return place != "" && place == c.PCIAddress
	})
}

// A formRule fixes the form of the cards it matches.
type formRule struct {
	pattern string
	form    accel.Form // empty for auto
}

func newFormRule(pattern, form string) (formRule, error) {
	r := formRule{pattern: strings.ToLower(pattern)}
	if _, err := path.Match(r.pattern, ""); err != nil {
		return r, fmt.Errorf(`%q is not a pattern: write a UUID, an index, or a model with * for any text, for example "A100*"`, pattern)
	}
	switch form {
	case "auto":
	case string(accel.Whole), string(accel.Shared), string(accel.MIG):
		r.form = accel.Form(form)
	default:
		return r, fmt.Errorf(`%q is not a form for %q: write "whole", "shared", "mig" or "auto"`, form, pattern)
	}
	return r, nil
}

// exactness orders the ways to match a card: UUID, then index, then the model with or without its brand in front. 0 is
// no match.
func (r formRule) exactness(c accel.Card) int {
	vendor, index := string(c.Vendor)+"/", strconv.Itoa(c.Index)
	switch {
	case r.pattern == strings.ToLower(c.UUID):
		return 3
	case r.pattern == index, r.pattern == vendor+index:
		return 2
	}
	for _, name := range []string{c.Model, vendor + c.Model} {
		if ok, err := path.Match(r.pattern, strings.ToLower(name)); ok && err == nil {
			return 1
		}
	}
	return 0
}

// fixedForm is the form that the config names for a card: the most exact rule, and of equal ones the longest pattern.
// Empty means auto.
func (s settings) fixedForm(c accel.Card) accel.Form {
	best, form := 0, accel.Form("")
	for _, r := range s.rules {
		if e := r.exactness(c); e > best {
			best, form = e, r.form
		}
	}
	return form
}
