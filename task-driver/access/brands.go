package access

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/heteroflow/heteroflow/internal/accel"
)

// brand is how containers get to the cards of one brand. A path that ends in "?" is taken where it is there; one without
// must be there when nodes and mounts are all a container gets.
type brand struct {
	runtime      string   // name the maker's toolkit gives its OCI runtime; empty: the maker has none, or none is known
	needsRuntime bool     // the libraries of the driver come by the runtime or by CDI only
	cdi          []string // vendor part of the maker's CDI kinds
	nodes        []string // of the driver, the same for every card
	beside       []string // of a card, by the number of its node
	dri          bool     // a card's render node follows from its PCI address
	driCard      bool     // so does its primary node, and it is needed
	mounts       []string // libraries and tools of the driver, read-only
	cards        []*regexp.Regexp
	parts        []*regexp.Regexp // nodes of parts of cards
	rename       [2]string        // what the path of such a node begins with on the host, and in a container
	variables    []string         // beside the visible-devices ones, what no job may set; "*" at the end: every name that begins so
	targets      []string         // places in a container by which a runtime is told which cards to show

	fixRuntime, fixNode, fixDriver, fixCDI string
}

func patterns(texts ...string) []*regexp.Regexp {
	var out []*regexp.Regexp
	for _, t := range texts {
		out = append(out, regexp.MustCompile("^/dev/"+t+"$"))
	}
	return out
}

const renderNode = `dri/renderD\d+`

// brands is the table. Where nothing else is said, device nodes, libraries and variables are those that the project's fact
// tables collected from makers' documents, gpustack/runtime (detectors and CDI generators) and Project-HAMi's device plugins.
// Commands to mend a node are the makers' own; what makes a node missing is told by the kernel's log.
var brands = map[accel.Vendor]brand{
	// NVIDIA Container Toolkit documents "nvidia-ctk runtime configure", "nvidia-ctk cdi generate" and the naming of nodes
	// against lost access (NVIDIA/nvidia-docker issue 1730). With the option accept-nvidia-visible-devices-as-volume-mounts
	// its runtime also reads the mounts below /var/run/nvidia-container-devices. NVIDIA_MOFED and NVIDIA_NVSWITCH have it bring
	// every InfiniBand device, and the switches between cards. CUDA_DEVICE_* and the like are HAMi-core's.
	accel.NVIDIA: {
		runtime: "nvidia", needsRuntime: true, cdi: []string{"nvidia.com"},
		nodes: []string{"/dev/nvidiactl?", "/dev/nvidia-uvm?", "/dev/nvidia-uvm-tools?", "/dev/nvidia-modeset?"},
		cards: patterns(`nvidia\d+`), parts: patterns(`nvidia-caps/.+`, `nvidia-caps-imex-channels/.+`),
		variables: []string{
			"NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_IMEX_CHANNELS", "NVIDIA_MOFED", "NVIDIA_NVSWITCH", "DOCKER_RESOURCE_*",
			"CUDA_DEVICE_MEMORY_*", "CUDA_DEVICE_SM_LIMIT", "CUDA_DISABLE_CONTROL", "CUDA_OVERSUBSCRIBE", "CUDA_TASK_PRIORITY",
			"GPU_CORE_UTILIZATION_POLICY", "ACTIVE_OOM_KILLER",
		},
		targets:    []string{"/var/run/nvidia-container-devices", "/run/nvidia-container-devices"},
		fixRuntime: "install nvidia-container-toolkit, then sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
		fixNode:    "sudo nvidia-modprobe -c 0 -u makes the nodes; nvidia-smi says whether the driver runs",
		fixCDI:     "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml on a Docker daemon with CDI lets them in without a runtime",
	},
	// Toolkit of the maker: mt-container-toolkit, its runtime is bound by the script /usr/bin/musa/docker.
	accel.MThreads: {
		runtime: "mthreads", needsRuntime: true, cdi: []string{"mthreads.com"}, dri: true,
		cards: patterns(`mtgpu\.\d+`, renderNode), variables: []string{"METHERDS_VISIBLE_DEVICES"},
		fixRuntime: "install mt-container-toolkit, then (cd /usr/bin/musa && sudo ./docker setup $PWD) && sudo systemctl restart docker",
		fixNode:    "sudo modprobe -rv mtgpu && sudo modprobe mtgpu loads the driver anew",
	},
	// The maker's guide gives containers /dev/kfd, /dev/mkfd, /dev/dri and /opt/hyhal. gpustack gives primary and render node.
	accel.Hygon: {
		cdi: []string{"hygon.com"}, nodes: []string{"/dev/kfd", "/dev/mkfd?"}, dri: true, driCard: true, mounts: []string{"/opt/hyhal"},
		cards:     patterns(renderNode),
		fixNode:   "sudo modprobe hycu (hydcu with an older driver); sudo dmesg says why it makes no node",
		fixDriver: "install the maker's driver, which brings /opt/hyhal",
	},
	accel.Cambricon: {
		cdi:    []string{"cambricon.com"},
		nodes:  []string{"/dev/cambricon_ctl?", "/dev/cambricon_gdr?", "/dev/cambr-msgq?", "/dev/cambr-rpc?", "/dev/cmsg_ctrl?", "/dev/commu?"},
		beside: []string{"/dev/cambricon_ipcm"}, mounts: []string{"/usr/bin/cnmon?"},
		cards: patterns(`cambricon_dev\d+`, `cambricon_ipcm\d+`), parts: patterns(`cambricon-caps/.+`),
		variables: []string{"CAMBRICON_DSMLU_*", "CAMBRICON_SPLIT_*"},
		fixNode:   "sudo modprobe cambricon_drv; sudo dmesg says why it makes no node",
	},
	// The runtime biren, a CDI one, sets BR_PHY_CARDS.
	accel.Biren: {
		runtime: "biren", cdi: []string{"birentech.com", "biren.com"}, nodes: []string{"/dev/biren-m"}, mounts: []string{"/usr/local/birensupa/driver"},
		cards: patterns(`biren/card_\d+`), variables: []string{"BR_PHY_CARDS"},
		fixRuntime: "install the maker's container toolkit and restart Docker",
		fixNode:    "sudo modprobe biren; sudo dmesg says why it makes no node",
		fixDriver:  "install the maker's driver, which brings /usr/local/birensupa/driver",
	},
	// Nodes and mounts are those of the maker's guide for containers without its runtime. ASCEND_RUNTIME_* and
	// ASCEND_VNPU_SPECS tell ascend-docker-runtime to mount more, and to divide a card.
	accel.Ascend: {
		runtime: "ascend", cdi: []string{"huawei.com"},
		nodes:  []string{"/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc", "/dev/dvpp_cmdlist?", "/dev/uburma?", "/dev/ummu?"},
		mounts: []string{"/usr/local/Ascend/driver", "/usr/local/dcmi?", "/usr/local/bin/npu-smi?", "/etc/ascend_install.info?"},
		cards:  patterns(`davinci\d+`), parts: patterns(`vdavinci\d+`), rename: [2]string{"/dev/vdavinci", "/dev/davinci"},
		variables:  []string{"ASCEND_RUNTIME_*", "ASCEND_VNPU_SPECS", "ASCEND_ALLOW_LINK", "NPU_MEM_QUOTA", "NPU_PRIORITY", "NPU_GLOBAL_SHM_PATH", "NPU_LOCAL_SHM_PATH"},
		fixRuntime: "sudo ./Ascend-docker-runtime_VERSION_linux-ARCH.run --install && sudo systemctl restart docker",
		fixNode:    "restart the machine; where the node stays away, install the driver anew: sudo ./Ascend-hdk-CHIP-npu-driver_VERSION_linux-ARCH.run --full",
		fixDriver:  "install the driver: sudo ./Ascend-hdk-CHIP-npu-driver_VERSION_linux-ARCH.run --full --install-for-all",
	},
	accel.Kunlunxin: {
		cdi: []string{"kunlunxin.com"}, nodes: []string{"/dev/xpuctrl"}, mounts: []string{"/usr/local/xpu?", "/usr/local/bin/xpu_smi?", "/usr/local/bin/xpu-smi?"},
		cards: patterns(`xpu\d+`), variables: []string{"CXPU_*"},
		// The runtime is needed by shares only; the name is the toolkit's own.
		fixRuntime: `install xpu-container-toolkit, add "xpu": {"path": "/usr/bin/xpu-container-runtime"} to runtimes in /etc/docker/daemon.json, then sudo systemctl restart docker`,
		fixNode:    "sudo modprobe kunlun; sudo dmesg says why it makes no node",
	},
	// AMD Container Toolkit documents amd-ctk and the kind amd.com/gpu; ROCm documents /dev/kfd with the card's render node
	// and the groups of these nodes.
	accel.AMD: {
		runtime: "amd", cdi: []string{"amd.com"}, nodes: []string{"/dev/kfd"}, dri: true, cards: patterns(renderNode),
		variables:  []string{"HSA_CU_MASK", "ROC_GLOBAL_CU_MASK", "HIP_DEVICE_MEMORY_*"},
		fixRuntime: "install amd-container-toolkit, then sudo amd-ctk runtime configure && sudo systemctl restart docker",
		fixNode:    "sudo modprobe amdgpu; sudo dmesg says why it makes no node",
		fixCDI:     "sudo amd-ctk cdi generate --output=/etc/cdi/amd.json on a Docker daemon with CDI lets them in without a runtime",
	},
	accel.MetaX: {
		cdi: []string{"metax-tech.com"}, nodes: []string{"/dev/mxcd", "/dev/mxnd?", "/dev/mxgd?"}, dri: true, driCard: true,
		cards: patterns(renderNode), fixNode: "sudo modprobe metax; sudo dmesg says why it makes no node",
	},
	// Deep-Spark/ix-container-toolkit names its runtime iluvatar; without it /dev/iluvatarN and /usr/local/corex do.
	accel.Iluvatar: {
		runtime: "iluvatar", cdi: []string{"iluvatar.ai", "iluvatar.com"}, nodes: []string{"/dev/itrctl?"}, mounts: []string{"/usr/local/corex"},
		cards: patterns(`iluvatar\d+`), variables: []string{"COREX_VISIBLE_DEVICES"},
		fixRuntime: "install ix-container-toolkit and restart Docker",
		fixNode:    "sudo modprobe iluvatar; sudo dmesg says why it makes no node",
		fixDriver:  "install the maker's CoreX package, which brings /usr/local/corex",
	},
	accel.Enflame: {
		runtime: "enflame", cdi: []string{"enflame.com", "enflame-tech.com"}, nodes: []string{"/dev/gcuctl?"}, cards: patterns(`gcu\d+`),
		fixRuntime: "install the maker's container toolkit and restart Docker",
		fixNode:    "sudo modprobe enflame; sudo dmesg says why it makes no node",
	},
	accel.Intel: {
		cdi: []string{"intel.com"}, dri: true, cards: patterns(renderNode),
		fixNode: "sudo dmesg says why the driver i915 or xe made no node: most often firmware is missing, sudo apt install linux-firmware",
	},
}

// inside is the path of a node in a container.
func (b brand) inside(host string) string {
	if rest, ok := strings.CutPrefix(host, b.rename[0]); ok && b.rename[0] != "" {
		return b.rename[1] + rest
	}
	return host
}

// besides are the nodes that go with a node of a card.
func (b brand) besides(node string) []string {
	number := trailing.FindString(node)
	var out []string
	for _, stem := range b.beside {
		if number != "" && stem+number != node {
			out = append(out, stem+number)
		}
	}
	return out
}

var trailing = regexp.MustCompile(`\d+$`)

// Runtimes are the names makers give their OCI runtimes, sorted.
func Runtimes() []string {
	var out []string
	for _, b := range brands {
		if b.runtime != "" {
			out = append(out, b.runtime)
		}
	}
	slices.Sort(out)
	return out
}

// IsCardNode reports whether a path below /dev is a node of some brand's card, part of a card, or driver: no job may name
// it, only a grant gives it.
func IsCardNode(node string) bool {
	node = path.Clean(node)
	if strings.HasPrefix(node+"/", "/dev/dri/") {
		return true
	}
	for _, b := range brands {
		if match(b.cards, node) || match(b.parts, node) || slices.Contains(b.nodes, node) || slices.Contains(b.nodes, node+"?") {
			return true
		}
		for _, re := range slices.Concat(b.cards, b.parts) { // a folder of such nodes
			if folder, _, ok := strings.Cut(strings.TrimPrefix(re.String(), "^/dev/"), "/"); ok && node == "/dev/"+folder {
				return true
			}
		}
	}
	return false
}

// IsGuarded reports whether a variable, beside the visible-devices ones, tells a maker's runtime or library which cards to
// show or how to bound a share: only the driver may set it.
func IsGuarded(variable string) bool {
	for _, b := range brands {
		for _, name := range b.variables {
			if stem, all := strings.CutSuffix(name, "*"); name == variable || all && strings.HasPrefix(variable, stem) {
				return true
			}
		}
	}
	return false
}

// GuardedTarget reports whether a mount at this place in a container would tell a maker's runtime which cards to show.
func GuardedTarget(target string) bool {
	target = path.Clean("/" + target)
	for _, b := range brands {
		for _, place := range b.targets {
			if target == place || strings.HasPrefix(target, place+"/") {
				return true
			}
		}
	}
	return false
}

// BrandOf is the brand whose maker's runtime has this name, on a node where some have other names.
func BrandOf(runtime string, names map[accel.Vendor]string) (accel.Vendor, bool) {
	for _, v := range accel.Vendors() {
		if runtime != "" && (brands[v].runtime == runtime || names[v] == runtime) {
			return v, true
		}
	}
	return "", false
}
