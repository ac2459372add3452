package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose/bundle"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose/mask"
	"github.com/heteroflow/heteroflow/task-driver/docker"
)

// checkDocker asks the Docker daemon of this machine.
func checkDocker(ctx context.Context) []finding {
	host := docker.DefaultHost()
	daemon, err := docker.Dial(host)
	if err != nil {
		return []finding{warn("Docker", "set DOCKER_HOST to the daemon's address", "%s", err)}
	}
	info, err := daemon.Info(ctx)
	if err = errors.Join(err, daemon.Close()); err != nil {
		return []finding{warn("Docker", "start it where tasks shall run in containers; plain processes do without", "%s does not answer", host)}
	}
	return []finding{ok("Docker", "%s, version %s", host, info.Version)}
}

// checkCards has the device plugin look at the cards of this machine, or of the one that a bundle was made of, and say
// what is missing. With a file the plugin packs what it read into it.
func checkCards(ctx context.Context, program string, args []string, verbose bool) []finding {
	const name = "cards here"
	if _, err := os.Stat(program); err != nil {
		return []finding{warn(name, "build all programs with \"make build\", or name their folder with -bin-dir", "cannot be looked for: %s is missing", program)}
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"-diagnose"}, args...)...)
	cmd.WaitDelay = time.Second // a tool that it started may hold its output
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return []finding{fail(name, "run \""+program+" -diagnose\" by hand, and look at \"sudo dmesg\" for a card or driver that does not answer", "cannot be looked for: the device plugin does not answer after %s", checkTime)}
	}
	if err != nil {
		why := strings.TrimSpace(stderr.String())
		if why == "" {
			why = err.Error()
		}
		return []finding{fail(name, "run \""+program+" -diagnose\" by hand", "cannot be looked for: %s", why)}
	}
	var d struct {
		device.Diagnosis
		StateTrouble string `json:"state_trouble"`
		Bundle       *struct {
			File string `json:"file"`
			bundle.About
		} `json:"bundle"`
	}
	if err := json.Unmarshal(out, &d); err != nil {
		return []finding{fail(name, "use one version of both programs", "%s prints something else: %s", program, err)}
	}
	all := cardFindings(name, d.Diagnosis, verbose)
	if d.StateTrouble != "" && len(d.Cards) > 0 {
		all = append(all, stateFinding(d.StateTrouble, os.Geteuid()))
	}
	if d.Bundle != nil {
		all = append(all, bundleFinding(d.Bundle.File, d.Bundle.About, !slices.Contains(args, "-replay")))
	}
	return all
}

// stateFinding tells that the plugin's folder cannot be written. Another user than root may be refused what the agent may do.
func stateFinding(trouble string, uid int) finding {
	const name = "state of the cards"
	if uid > 0 && strings.Contains(trouble, "permission denied") {
		return ok(name, "cannot be written by this user: %s. Run it as the user of the agent to know whether that one can", trouble)
	}
	return fail(name, "have state_dir of heteroflow-device writable for the agent, or name another folder there and here with -state-dir", "cannot be written: %s. No task gets a card here, and no card changes its form", trouble)
}

// cardFindings tells what was found, brand by brand.
func cardFindings(name string, d device.Diagnosis, verbose bool) []finding {
	models := map[string]int{}
	var sick, all []finding
	for _, card := range d.Cards {
		models[string(card.Vendor)+" "+card.Model]++
		if !card.Healthy {
			sick = append(sick, partOf(warn(string(card.Vendor), "", "a %s is not healthy: %s", card.Model, card.Reason)))
		}
	}
	for _, source := range d.Sources {
		if source.Error != "" {
			sick = append(sick, partOf(warn(string(source.Vendor), "", "%s", source.Error)))
		}
	}
	var absent []string
	for _, b := range d.Brands {
		if b.Present || verbose {
			all = append(all, brandFindings(b)...)
		}
		if !b.Present {
			absent = append(absent, string(b.Vendor))
		}
	}
	for _, f := range d.Unclaimed {
		all = append(all, partOf(warn("unknown", "tell us of it: heteroflow doctor -bundle FILE.tar.gz", "the accelerator %s at %s is of no brand that is known here", f.ID, f.Address)))
	}
	words := make([]string, 0, len(models))
	for _, model := range slices.Sorted(maps.Keys(models)) {
		words = append(words, fmt.Sprintf("%d × %s", models[model], model))
	}
	first := ok(name, "%s", strings.Join(words, ", "))
	switch {
	case len(models) == 0 && len(all)+len(sick) == 0:
		return []finding{ok(name, "none: no accelerator shows on the PCI bus or by a device node. Jobs that need none run here, and nothing is missing for them")}
	case len(models) == 0:
		first = ok(name, "none")
	}
	all = append(append([]finding{first}, all...), sick...)
	if len(absent) > 0 && len(absent) < len(d.Brands) && !verbose {
		all = append(all, partOf(ok("others", "nothing shows of %s", strings.Join(absent, ", "))))
	}
	return all
}

// brandFindings tells of one brand what is there, how it was read, and what is missing.
func brandFindings(b diagnose.Brand) []finding {
	name := string(b.Vendor)
	there := fmt.Sprintf("%d on the PCI bus, %d listed, %d usable", len(b.Bus), b.Cards, b.Usable)
	if !b.Present {
		there = "nothing shows"
	}
	for _, m := range b.Modules {
		if m.Loaded {
			there += ", module " + strings.TrimSpace(m.Name+" "+m.Version)
		}
	}
	if len(b.Nodes) > 0 {
		const most = 6
		there += ", " + strings.Join(b.Nodes[:min(len(b.Nodes), most)], " ")
		if len(b.Nodes) > most {
			there += fmt.Sprintf(" and %d more", len(b.Nodes)-most)
		}
	}
	all := []finding{partOf(ok(name, "%s; tried in this order: %s", there, pathsText(b.Paths)))}
	for _, note := range b.Notes {
		all = append(all, partOf(ok(name, "%s", note)))
	}
	for _, l := range b.Lacks {
		advice := l.Do
		if l.See != "" {
			advice += " (" + l.See + ")"
		}
		tell := warn
		if b.Usable == 0 && l.Kind != diagnose.NoRuntime && l.Kind != diagnose.NoDockerSetup {
			tell = fail
		}
		all = append(all, partOf(tell(name, strings.TrimSpace(advice), "%s: %s", strings.ReplaceAll(string(l.Kind), "_", " "), l.What)))
	}
	return all
}

// pathsText tells how the ways to read the cards fared. Neighbours that fared alike are told together.
func pathsText(paths []diagnose.Path) string {
	var texts []string
	names, last := []string{}, ""
	flush := func() {
		if len(names) > 0 {
			texts = append(texts, strings.Join(names, ", ")+": "+last)
		}
	}
	for _, p := range paths {
		text := strings.ReplaceAll(string(p.State), "_", " ")
		if p.Detail != "" {
			text += " (" + p.Detail + ")"
		}
		if forms := formsOf(p); forms != "" {
			text += ", printing " + forms
		}
		if text != last {
			flush()
			names, last = nil, text
		}
		names = append(names, p.Name)
	}
	flush()
	return strings.Join(texts, "; ")
}

// formsOf are the forms in which a tool answered, in their order.
func formsOf(p diagnose.Path) string {
	var forms []string
	for _, c := range p.Calls {
		if c.Form != "nothing" && !slices.Contains(forms, c.Form) {
			forms = append(forms, c.Form)
		}
	}
	return strings.Join(forms, ", ")
}

// bundleFinding says what was masked, and what does not play as it was.
func bundleFinding(file string, about bundle.About, written bool) finding {
	var masked []string
	for _, kind := range mask.Kinds() {
		masked = append(masked, fmt.Sprintf("%d %s", about.Masked[kind], kind))
	}
	text := fmt.Sprintf("%s of %s, made %s. Masked: %s", file, about.System, moment(&about.Made), strings.Join(masked, ", "))
	if about.Library != "" {
		text += ". " + strings.TrimSuffix(about.Library, ".")
	}
	if len(about.Differs) > 0 {
		text += ". A replay finds something else than the machine for " + strings.Join(about.Differs, ", ")
	}
	f := ok("bundle", "%s", text)
	if written {
		f.Advice = "look through it before you send it: a tool that we do not know may print what we do not look for"
	}
	return f
}
