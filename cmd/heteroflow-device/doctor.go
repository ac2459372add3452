package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/moby/sys/atomicwriter"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose/bundle"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose/mask"
	"github.com/heteroflow/heteroflow/device-plugins/health"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
	"github.com/heteroflow/heteroflow/internal/accel"
	"github.com/heteroflow/heteroflow/internal/version"
)

// A report is what -diagnose prints.
type report struct {
	device.Diagnosis
	StateTrouble string       `json:"state_trouble,omitempty"` // why this user cannot write state_dir
	Bundle       *aboutBundle `json:"bundle,omitempty"`        // that was written or played
}

type aboutBundle struct {
	File string `json:"file"`
	bundle.About
}

// examine looks at the machine, and packs what was read into a bundle where one is asked for.
func examine(ctx context.Context, cfg device.Config, file string, log hclog.Logger) (report, error) {
	if file == "" {
		d, err := device.Diagnose(ctx, cfg, detectors(log), hostfs.New(cfg.Root), log)
		return report{Diagnosis: d, StateTrouble: device.StateTrouble(cfg.StateDir)}, err
	}
	if _, err := os.Lstat(file); err == nil {
		return report{}, fmt.Errorf("%s is there already: name another file", file)
	}
	d, b, err := record(ctx, cfg, log)
	if err != nil {
		return report{}, err
	}
	var packed bytes.Buffer
	if err := b.Write(&packed); err != nil {
		return report{}, err
	}
	if err := atomicwriter.WriteFile(file, packed.Bytes(), 0o600); err != nil {
		return report{}, fmt.Errorf("write the bundle: %w", err)
	}
	return report{Diagnosis: d, StateTrouble: device.StateTrouble(cfg.StateDir), Bundle: &aboutBundle{file, b.About}}, nil
}

// record looks at the machine and makes a bundle of it, masked. It is played at once, to say what of it plays otherwise.
func record(ctx context.Context, cfg device.Config, log hclog.Logger) (device.Diagnosis, bundle.Bundle, error) {
	files, tools := hostfs.Record(cfg.Root), vendorcli.Record(vendorcli.Host{})
	empty, forget, err := emptyState(log)
	if err != nil {
		return device.Diagnosis{}, bundle.Bundle{}, err
	}
	defer forget()
	fresh := cfg
	fresh.StateDir = empty // the forms of cards are no matter of the machine
	d, err := device.Diagnose(ctx, fresh, detectorsOf(machine{files: files.Files(), tools: tools}, log), files.Files(), log)
	if err != nil {
		return device.Diagnosis{}, bundle.Bundle{}, err
	}
	kernel, distro := bundle.Versions(files.Files())
	raw := bundle.Bundle{
		About: bundle.About{
			Format: bundle.Format, Made: time.Now().UTC().Truncate(time.Second), Version: version.Version, System: runtime.GOOS + "/" + runtime.GOARCH,
			Kernel: kernel, Distro: distro, Config: played(cfg),
		},
		Calls: tools.Recording(), Snapshot: files.Snapshot(),
	}
	if raw.History, err = health.Text(cfg.StateDir); err != nil {
		log.Warn("health history cannot be read, the bundle has none", "error", err)
	}
	if raw.Findings, err = json.Marshal(d); err != nil {
		return device.Diagnosis{}, bundle.Bundle{}, fmt.Errorf("encode the findings: %w", err)
	}
	m, err := masker(cfg, raw, d, log)
	if err != nil {
		return device.Diagnosis{}, bundle.Bundle{}, err
	}
	b, err := raw.Mask(m)
	if err != nil {
		return device.Diagnosis{}, bundle.Bundle{}, err
	}
	b.Findings = renamed(b.Findings, d, m)
	b.About.Differs, err = differing(ctx, b, log)
	if slices.ContainsFunc(d.Cards, func(c device.FoundCard) bool { return slices.Contains(sources(c), "nvml") }) {
		b.About.Library = "NVIDIA's cards were read through its library, NVML. That cannot be played again: a replay reads what nvidia-smi printed."
	}
	return d, b, err
}

// emptyState makes a state folder of a plugin that has not run yet, and a function that removes it.
func emptyState(log hclog.Logger) (string, func(), error) {
	empty, err := os.MkdirTemp("", "heteroflow-doctor-")
	if err != nil {
		return "", nil, fmt.Errorf("make a folder for the doctor: %w", err)
	}
	return empty, func() {
		if err := os.RemoveAll(empty); err != nil {
			log.Warn("folder of the doctor stays", "error", err)
		}
	}, nil
}

func sources(c device.FoundCard) []string {
	var all []string
	for _, s := range c.Sources {
		all = append(all, s)
	}
	return all
}

// masker learns what is private on this machine.
func masker(cfg device.Config, raw bundle.Bundle, d device.Diagnosis, log hclog.Logger) (*mask.Masker, error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make a key for the pseudonyms: %w", err)
	}
	m := mask.New(key)
	for _, c := range d.Cards {
		m.Keep(c.DriverVersion)
	}
	for _, b := range d.Brands {
		for _, module := range b.Modules {
			m.Keep(module.Version)
		}
	}
	if host, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(host, ".")
		m.Learn(mask.Secret{Kind: mask.Host, Value: host}, mask.Secret{Kind: mask.Host, Value: short})
	}
	for _, name := range users() {
		m.Learn(mask.Secret{Kind: mask.User, Value: name})
	}
	m.Learn(mask.Secret{Kind: mask.Token, Value: cfg.Token})
	all, err := detectorsOf(machine{}, log)(cfg)
	if err != nil {
		return nil, err
	}
	var knowers []mask.Knower
	for _, one := range all {
		if k, ok := one.(mask.Knower); ok {
			knowers = append(knowers, k)
		}
	}
	raw.Learn(m, knowers...)
	return m, nil
}

// users are the people who have an account here, and who runs this.
func users() []string {
	names := []string{os.Getenv("USER"), os.Getenv("LOGNAME"), os.Getenv("SUDO_USER")}
	list, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return names // not every system has one
	}
	for line := range strings.Lines(string(list)) {
		parts := strings.Split(line, ":")
		const firstPerson, nobody = 1000, 65534
		if len(parts) < 3 {
			continue
		}
		if id, err := strconv.Atoi(parts[2]); err == nil && id >= firstPerson && id != nobody {
			names = append(names, parts[0])
		}
	}
	return names
}

// renamed writes the short names of cards, which follow from their UUIDs, as they follow from the pseudonyms.
func renamed(findings []byte, d device.Diagnosis, m *mask.Masker) []byte {
	var names []string
	for _, c := range d.Cards {
		names = append(names, accel.ShortID(c.Vendor, c.UUID), accel.ShortID(c.Vendor, m.Text(c.UUID)))
	}
	return []byte(strings.NewReplacer(names...).Replace(string(findings)))
}

// played is the part of the config that decides what is found.
func played(cfg device.Config) map[string]string {
	return map[string]string{"nvidia_smi": cfg.NvidiaSMI, "hami_library": cfg.HAMiLibrary}
}

// replay plays a bundle: the same detectors on the recorded machine.
func replay(ctx context.Context, b bundle.Bundle, log hclog.Logger) (device.Diagnosis, error) {
	cfg := device.DefaultConfig()
	empty, forget, err := emptyState(log)
	if err != nil {
		return device.Diagnosis{}, err
	}
	defer forget()
	cfg.StateDir, cfg.NvidiaSMI, cfg.HAMiLibrary = empty, b.About.Config["nvidia_smi"], b.About.Config["hami_library"]
	m := machine{files: b.Files(), tools: b.Tools(), recorded: true}
	return device.Diagnose(ctx, cfg, detectorsOf(m, log), m.files, log)
}

// play plays the bundle in a file.
func play(ctx context.Context, file string, log hclog.Logger) (report, error) {
	b, err := bundle.Open(file)
	if err != nil {
		return report{}, fmt.Errorf("%s: %w", file, err)
	}
	d, err := replay(ctx, b, log)
	return report{Diagnosis: d, Bundle: &aboutBundle{file, b.About}}, err
}

// differing are the brands of which a replay finds something else than the bundle says was found.
func differing(ctx context.Context, b bundle.Bundle, log hclog.Logger) ([]string, error) {
	var was device.Diagnosis
	if err := json.Unmarshal(b.Findings, &was); err != nil {
		return nil, fmt.Errorf("read the findings: %w", err)
	}
	is, err := replay(ctx, b, log)
	if err != nil {
		return nil, fmt.Errorf("play the bundle: %w", err)
	}
	var differ []string
	for _, vendor := range accel.Vendors() {
		if !reflect.DeepEqual(of(was, vendor), of(is, vendor)) {
			differ = append(differ, string(vendor))
		}
	}
	return differ, nil
}

// of is what must be the same of a brand: all but the library's part, which cannot be played, and the order, which follows
// from the UUIDs.
func of(d device.Diagnosis, vendor accel.Vendor) any {
	type part struct {
		Cards []device.FoundCard
		Brand diagnose.Brand
		Error string
	}
	var p part
	for _, c := range d.Cards {
		if c.Vendor == vendor && c.Sources[accel.AttrUUID] != "sim" {
			links := strings.Split(c.Links, ",")
			slices.Sort(links)
			c.Links = strings.Join(links, ",")
			p.Cards = append(p.Cards, c)
		}
	}
	for _, b := range d.Brands {
		if b.Vendor == vendor {
			p.Brand = b
			p.Brand.Paths = slices.DeleteFunc(slices.Clone(b.Paths), func(p diagnose.Path) bool { return p.Kind == diagnose.Library })
		}
	}
	for _, s := range d.Sources {
		if s.Vendor == vendor && s.Name == string(vendor) {
			p.Error = s.Error
		}
	}
	slices.SortFunc(p.Cards, func(a, b device.FoundCard) int { return strings.Compare(a.UUID, b.UUID) })
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return string(body)
}
