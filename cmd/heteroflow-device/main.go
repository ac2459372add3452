// Command heteroflow-device is the device plugin: Nomad starts it and speaks gRPC with it. Started by a person it prints
// what it finds (-once) or its version. What it does lives in device-plugins; nothing but the wiring belongs here.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/go-hclog"

	"github.com/heteroflow/heteroflow/device-plugins/amd"
	"github.com/heteroflow/heteroflow/device-plugins/ascend"
	"github.com/heteroflow/heteroflow/device-plugins/biren"
	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/cambricon"
	"github.com/heteroflow/heteroflow/device-plugins/device"
	"github.com/heteroflow/heteroflow/device-plugins/enflame"
	"github.com/heteroflow/heteroflow/device-plugins/hostfs"
	"github.com/heteroflow/heteroflow/device-plugins/hygon"
	"github.com/heteroflow/heteroflow/device-plugins/iluvatar"
	"github.com/heteroflow/heteroflow/device-plugins/intel"
	"github.com/heteroflow/heteroflow/device-plugins/kunlunxin"
	"github.com/heteroflow/heteroflow/device-plugins/metax"
	"github.com/heteroflow/heteroflow/device-plugins/mthreads"
	"github.com/heteroflow/heteroflow/device-plugins/nvidia"
	"github.com/heteroflow/heteroflow/device-plugins/sim"
	"github.com/heteroflow/heteroflow/device-plugins/vendorcli"
	"github.com/heteroflow/heteroflow/internal/nomadplugin"
	"github.com/heteroflow/heteroflow/internal/version"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		log := nomadplugin.NewLogger(device.Name)
		if n := vendorcli.EndOrphans(); n > 0 {
			log.Warn("processes that tools of an earlier plugin left behind were ended", "count", n)
		}
		nomadplugin.ServeDevice(device.New(detectorsOf(machine{keeps: true}, log), log), log)
		return nil
	}
	if args[0] == "version" {
		_, err := fmt.Fprintln(stdout, device.Name, version.Version)
		return err
	}
	flags := flag.NewFlagSet(device.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	once := flags.Bool("once", false, "print the cards found now as JSON, and end")
	diagnosing := flags.Bool("diagnose", false, "print the cards found now, how every way to read them fared, and what is missing, as JSON, and end")
	bundleFile := flags.String("bundle", "", "with -diagnose: pack all that was read into this `file`, with private details masked")
	replayFile := flags.String("replay", "", "with -diagnose: look at the machine that this `file` is a bundle of, in place of this one")
	cfg := device.DefaultConfig()
	flags.StringVar(&cfg.SimConfig, "sim", "", "file of simulated cards, as sim_config")
	flags.StringVar(&cfg.Root, "root", cfg.Root, "folder with /proc and /sys of the machine")
	flags.StringVar(&cfg.NvidiaSMI, "nvidia-smi", cfg.NvidiaSMI, "name or path of nvidia-smi")
	flags.StringVar(&cfg.StateDir, "state-dir", cfg.StateDir, "folder of the plugin's state")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil // it was printed
	} else if err != nil {
		return err
	}
	log := hclog.New(&hclog.LoggerOptions{Name: device.Name, Output: stderr, Level: hclog.Warn})
	var found any
	var err error
	switch {
	case !*diagnosing && *bundleFile+*replayFile != "":
		return errors.New("-bundle and -replay need -diagnose: write it before them")
	case *diagnosing && *bundleFile != "" && *replayFile != "":
		return errors.New("-bundle and -replay are of two machines: write one of them")
	case *diagnosing && *replayFile != "":
		found, err = play(ctx, *replayFile, log)
	case *diagnosing:
		found, err = examine(ctx, cfg, *bundleFile, log)
	case *once:
		found, err = device.Once(ctx, cfg, detectors(log), log)
	default:
		return errors.New("nothing to do: Nomad starts the plugin without arguments; write -once to see the cards it finds, -diagnose to see why, or version")
	}
	if err != nil {
		return err
	}
	enc := json.NewEncoder(stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(found)
}

// A machine is where detectors look. The zero value is this one.
type machine struct {
	files    hostfs.FS
	tools    vendorcli.Runner
	recorded bool
	keeps    bool // what is learned of the cards is kept for the next start
}

// detectors is the registry of brands, read in this order, for a look that changes nothing.
func detectors(log hclog.Logger) device.Build { return detectorsOf(machine{}, log) }

func detectorsOf(m machine, log hclog.Logger) device.Build {
	return func(cfg device.Config) ([]device.Detector, error) {
		byTool := func(spec brand.Spec) device.Detector {
			return brand.New(spec, brand.Config{Root: cfg.Root, Files: m.files, Tools: m.tools, StateDir: cfg.StateDir, Looking: !m.keeps}, log.Named(string(spec.Vendor)))
		}
		all := []device.Detector{
			nvidia.New(nvidia.Config{
				Root: cfg.Root, Files: m.files, Tools: m.tools, NoLibrary: m.recorded, StateDir: cfg.StateDir, Looking: !m.keeps,
				SMI: cfg.NvidiaSMI, HAMi: cfg.HAMiLibrary, XidHardware: cfg.XidHardware, XidApplication: cfg.XidApplication,
			}, log.Named("nvidia")),
			byTool(mthreads.Spec()),
			byTool(hygon.Spec()),
			byTool(cambricon.Spec()),
			byTool(biren.Spec()),
			byTool(ascend.Spec()),
			byTool(kunlunxin.Spec()),
			byTool(amd.Spec()),
			byTool(metax.Spec()),
			byTool(iluvatar.Spec()),
			byTool(enflame.Spec()),
			byTool(intel.Spec()),
		}
		if cfg.SimConfig == "" {
			return all, nil
		}
		simulated, err := sim.Load(cfg.SimConfig)
		if err != nil {
			return nil, err
		}
		for _, d := range simulated {
			all = append(all, d)
		}
		return all, nil
	}
}
