package driver

import (
	"github.com/heteroflow/heteroflow/task-driver/share"
	"github.com/heteroflow/heteroflow/task-driver/share/amd"
	"github.com/heteroflow/heteroflow/task-driver/share/ascend"
	"github.com/heteroflow/heteroflow/task-driver/share/biren"
	"github.com/heteroflow/heteroflow/task-driver/share/bronze"
	"github.com/heteroflow/heteroflow/task-driver/share/cambricon"
	"github.com/heteroflow/heteroflow/task-driver/share/hygon"
	"github.com/heteroflow/heteroflow/task-driver/share/kunlunxin"
	"github.com/heteroflow/heteroflow/task-driver/share/mthreads"
	"github.com/heteroflow/heteroflow/task-driver/share/nvidia/hami"
	"github.com/heteroflow/heteroflow/task-driver/share/nvidia/mig"
	"github.com/heteroflow/heteroflow/task-driver/share/nvidia/mps"
)

// newBackends are all that makes shares real, in the order in which they are listed: one line each, the brand's own in the
// order in which they are tried when the plugin's config does not say.
func newBackends(h share.Host, s settings) []share.Backend {
	return []share.Backend{
		mig.New(h),
		mps.New(h, mps.Options{Overuse: s.overuse}),
		hami.New(h, hami.Options{Library: s.HAMiLibrary, Overuse: s.overuse}),
		mthreads.New(h),
		hygon.New(h),
		cambricon.New(h),
		biren.New(h),
		ascend.NewVNPUs(h),
		ascend.NewSlices(h),
		kunlunxin.New(h),
		amd.New(h),
		bronze.New(h, bronze.Readers(h), bronze.Options{Overuse: s.overuse}),
	}
}
