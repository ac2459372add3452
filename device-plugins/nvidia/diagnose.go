package nvidia

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"regexp"
	"strconv"

	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose"
	"github.com/heteroflow/heteroflow/device-plugins/diagnose/mask"
	"github.com/heteroflow/heteroflow/internal/accel"
)

var (
	_ device.Diagnoser = (*Detector)(nil)
	_ mask.Knower      = (*Detector)(nil)
)

const libraryName = "libnvidia-ml.so.1 (NVML)"

// Diagnose tries the library and the tool, whichever of them lists the cards otherwise, and says what is missing.
func (d *Detector) Diagnose(ctx context.Context) (diagnose.Brand, error) {
	limited, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	kernel, kernelErr := kernelReport(d.files)
	if kernelErr != nil {
		d.log.Debug("some pci devices cannot be read", "error", kernelErr)
	}
	library, byLibrary := d.tryLibrary()
	tracer := diagnose.Trace(d.smi.run)
	r, err := (&smi{path: d.smi.path, run: tracer}).inventory(limited)
	tool := tried(d.smi.path, r, err, tracer)
	if ctx.Err() != nil {
		return diagnose.Brand{}, ctx.Err()
	}
	source := "cli"
	switch {
	case library.State == diagnose.Works:
		r, source = byLibrary, "nvml"
		fallthrough
	case tool.State == diagnose.Works:
		r.addKernel(kernel)
	default:
		r, source = kernel, "sysfs"
		for i := range r.gpus {
			if tool.State != diagnose.Missing {
				first(&r.gpus[i].dead, "nvidia-smi "+tool.Detail)
			}
		}
	}
	d.name(&r)
	bus, busErr := d.files.Accelerators(pciVendor)
	if busErr != nil {
		d.log.Debug("some pci devices cannot be read", "error", busErr)
	}
	b := diagnose.Examine(diagnose.Case{
		Vendor: accel.NVIDIA, Setup: setup(), Files: d.files, Tools: d.smi.run, Bus: bus,
		Signs: d.files.Exists("dev/nvidiactl"), Paths: []diagnose.Path{library, tool}, Said: tracer.Said(),
		Cards: r.cards(source, d.files, probes{}),
	})
	if b.Present && library.State == diagnose.Failed && tool.State == diagnose.Works {
		b.Lacks = append(b.Lacks, diagnose.Lack{Kind: diagnose.NoLibrary, What: "NVML " + library.Detail + ": Xids and partitions are told less well without it", Fix: reinstall()})
	}
	return b, nil
}

// tryLibrary reads by NVML, where it is to be used.
func (d *Detector) tryLibrary() (diagnose.Path, report) {
	p := diagnose.Path{Name: libraryName, Kind: diagnose.Library}
	if d.nvml == nil {
		p.State, p.Detail = diagnose.NotTried, "the library is of this machine, and another one is read"
		return p, report{}
	}
	r, err := d.nvml()
	switch {
	case err == nil:
		p.State, p.Detail = diagnose.Works, counted(len(r.gpus))
	case errors.Is(err, errNVMLAbsent):
		p.State, p.Detail = diagnose.Missing, err.Error()
	default:
		p.State, p.Detail = diagnose.Failed, "does not answer: "+err.Error()
	}
	return p, r
}

// tried tells how nvidia-smi fared.
func tried(path string, r report, err error, tracer *diagnose.Tracer) diagnose.Path {
	p := diagnose.Path{Name: path, Kind: diagnose.Tool, Calls: tracer.Calls()}
	var start *fs.PathError
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		p.State = diagnose.Missing
	case err == nil && !r.noDriver:
		p.State, p.Detail = diagnose.Works, counted(len(r.gpus))
	case err == nil:
		p.State, p.Detail = diagnose.Failed, "cannot reach the driver"
	case tracer.Hung():
		p.State, p.Detail = diagnose.Hangs, fmt.Sprintf("does not answer after %.0f s", toolLimit.Seconds())
	case errors.As(err, &start):
		p.State, p.Detail = diagnose.Failed, "cannot be started: "+start.Err.Error()
	default:
		p.State, p.Detail = diagnose.Failed, "prints nothing that is known"
	}
	return p
}

func counted(n int) string {
	if n == 1 {
		return "lists 1 card"
	}
	return fmt.Sprintf("lists %d cards", n)
}

var (
	namedProcess = regexp.MustCompile(`(?m)^\|\s+\d+\s+(?:(?:\d+|N/A)\s+(?:\d+|N/A)\s+)?(\d+)\s+(?:C|G|C\+G|M\+C)\s+(\S.*?)\s+\S+\s*\|$`)
	pagedProcess = regexp.MustCompile(`(?m)^\s+Process ID\s*:\s*\d+\s*\n(?:\s+Type\s*:.*\n)?\s+Name\s*:\s*(\S.*?)\s*$`)
)

// Secrets finds the numbers of the cards and what runs on them.
func (d *Detector) Secrets(text string) []mask.Secret {
	var all []mask.Secret
	r, _ := parse(text)
	for _, g := range r.gpus {
		all = append(all, mask.Secret{Kind: mask.UUID, Value: g.uuid})
		for _, m := range g.migs {
			all = append(all, mask.Secret{Kind: mask.UUID, Value: m.uuid})
		}
	}
	for _, found := range namedProcess.FindAllStringSubmatch(text, -1) {
		if _, err := strconv.Atoi(found[1]); err == nil {
			all = append(all, mask.Secret{Kind: mask.Command, Value: found[2], With: found[1]})
		}
	}
	for _, found := range pagedProcess.FindAllStringSubmatch(text, -1) {
		all = append(all, mask.Secret{Kind: mask.Command, Value: found[1], With: "Name"})
	}
	return all
}
