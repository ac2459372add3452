package mthreads

import (
	"github.com/heteroflow/heteroflow/device-plugins/brand"
	"github.com/heteroflow/heteroflow/device-plugins/topology"
)

// links reads which cards are connected by MTLink. Tools that do not tell print no matrix.
func links(_ string, call brand.Call) (topology.Graph, error) {
	out, err := call("topo", "-m")
	if err != nil {
		return topology.Graph{}, err
	}
	return topology.ParseMatrix(out)
}
