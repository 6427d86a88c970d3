package nodes

import (
	"regexp"
	"strconv"
	"strings"
)

// detect asks every source that is there, the one nearest to the process first.
func detect(env Environment) []source {
	var out []source
	for _, ask := range []func(Environment) (source, bool){torchrun, torchPod, slurm, mpi, indexedJob, ray} {
		if s, ok := ask(env); ok {
			out = append(out, s)
		}
	}
	return out
}

// of returns a variable that is a number, else -1.
func (e Environment) of(name string) int {
	if n, ok := number(e.Getenv(name)); ok {
		return n
	}
	return -1
}

// torchrun is a worker of torchrun, one group of which runs on each node. Its
// restarts are counted by each node's agent for itself and differ between them,
// so that they are no part of the key. The id of a job that has none is "none".
func torchrun(env Environment) (source, bool) {
	s := source{name: "torchrun (GROUP_RANK, GROUP_WORLD_SIZE, TORCHELASTIC_RUN_ID)", nodes: env.of("GROUP_WORLD_SIZE"), node: env.of("GROUP_RANK")}
	switch id := env.Getenv("TORCHELASTIC_RUN_ID"); id {
	case "", "none":
		s.why = "it has no --rdzv-id"
	default:
		s.join = "torch-" + id
	}
	return s, s.nodes >= 0 && s.node >= 0
}

// podName is that of a replica of a PyTorchJob, after the name of the job.
var podName = regexp.MustCompile(`-(?:master|worker|node-\d+)-\d+$`)

// torchPod is a pod of a PyTorchJob or TrainJob, which sets for torchrun what
// it takes for its options. Its RANK is that of the replica, if no torchrun has
// made it a worker's. The first replica may see MASTER_ADDR as localhost; the
// names of the pods are better.
func torchPod(env Environment) (source, bool) {
	text := env.Getenv("PET_NNODES")
	s := source{name: "the PyTorch job (PET_NNODES, PET_NODE_RANK)", nodes: env.of("PET_NNODES"), node: env.of("PET_NODE_RANK")}
	if s.node < 0 && env.Getenv("LOCAL_RANK") == "" {
		s.node = env.of("RANK")
	}
	if strings.Contains(text, ":") {
		s.why = "its number of nodes may change (" + text + ")"
	}
	master := env.Getenv("PET_MASTER_ADDR")
	if master == "" {
		master = env.Getenv("MASTER_ADDR")
	}
	switch at := podName.FindStringIndex(env.Hostname); {
	case env.Getenv("PET_RDZV_ID") != "":
		s.join = "torch-" + env.Getenv("PET_RDZV_ID")
	case at != nil && at[0] > 0:
		s.join = "pod-" + env.Hostname[:at[0]]
	case master != "" && master != "localhost" && !strings.HasPrefix(master, "127.") && master != "::1":
		s.join = "pod-" + master
	}
	return s, text != ""
}

// specialStep is the least of the numbers that Slurm gives to steps that are
// none of srun's: the batch script, an interactive shell.
const specialStep = 0xfffffff0

// slurm is a task of a Slurm step. SLURM_NODEID counts within the step, so the
// step's number of nodes belongs to it, and not the job's. Each task of a job
// array is a job of its own, and a job that was requeued counts its restarts.
// In the batch script only the first node runs anything.
func slurm(env Environment) (source, bool) {
	id := env.Getenv("SLURM_JOB_ID")
	if id == "" {
		return source{}, false
	}
	s := source{name: "Slurm (SLURM_JOB_ID, SLURM_STEP_NUM_NODES, SLURM_NODEID)", nodes: env.of("SLURM_STEP_NUM_NODES"), node: env.of("SLURM_NODEID")}
	restart := "0"
	if n := env.of("SLURM_RESTART_COUNT"); n > 0 {
		restart = strconv.Itoa(n)
	}
	s.join = "slurm-" + id + "." + restart
	step, err := strconv.ParseUint(env.Getenv("SLURM_STEP_ID"), 10, 32)
	switch {
	case env.of("SLURM_HET_SIZE") > 1:
		s.nodes, s.node, s.join = -1, -1, ""
		s.why = "it is a heterogeneous job, whose parts count their nodes for themselves"
	case s.nodes < 0, err == nil && step >= specialStep:
		if s.nodes = env.of("SLURM_JOB_NUM_NODES"); s.nodes < 0 {
			s.nodes = env.of("SLURM_NNODES")
		}
		if s.node = -1; s.nodes == 1 {
			s.node = 0
		} else {
			s.why = "this is not started with srun, so it runs on one node alone"
		}
	}
	return s, true
}

// mpi is a rank of an MPI job, as the MPI operator starts them. It knows its
// rank and how many ranks its node has; which node that is follows if all nodes
// have as many, and ranks fill one node after the other, or go round.
func mpi(env Environment) (source, bool) {
	size, rank := env.of("OMPI_COMM_WORLD_SIZE"), env.of("OMPI_COMM_WORLD_RANK")
	if size < 1 || rank < 0 {
		return source{}, false
	}
	s := source{name: "MPI (OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_LOCAL_SIZE)", nodes: -1, node: -1}
	if ns := env.Getenv("PMIX_NAMESPACE"); ns != "" {
		s.join = "mpi-" + ns
	}
	per, local := env.of("OMPI_COMM_WORLD_LOCAL_SIZE"), env.of("OMPI_COMM_WORLD_LOCAL_RANK")
	if per < 1 || local < 0 || size%per != 0 {
		s.why = "its nodes do not have equally many ranks"
		return s, true
	}
	n := size / per
	byNode, round := local == rank%per, local == rank/n
	switch {
	case byNode && (!round || rank/per == rank%n):
		s.nodes, s.node = n, rank/per
	case round && !byNode:
		s.nodes, s.node = n, rank%n
	default:
		s.nodes, s.why = n, "its ranks do not tell on which node they are"
	}
	return s, true
}

// indexedJob is a pod of an indexed Job, perhaps of a JobSet. Kubernetes sets
// the index and the name of the pod; the names of the set and its restarts are
// there if the owner puts them there from the pod's annotations. How many pods
// there are it does not say.
func indexedJob(env Environment) (source, bool) {
	index := env.of("JOB_COMPLETION_INDEX")
	if index < 0 {
		return source{}, false
	}
	s := source{name: "the indexed Job (JOB_COMPLETION_INDEX)", nodes: -1, node: index, why: "it does not say how many pods it has"}
	if env.of("JOB_INDEX") > 0 {
		s.node, s.why = -1, "it is one of several Jobs of a JobSet, which count their pods for themselves"
	}
	if set := env.Getenv("JOBSET_NAME"); set != "" {
		s.join = "jobset-" + set
		if name := env.Getenv("REPLICATED_JOB_NAME"); name != "" {
			s.join += "-" + name
		}
		for _, v := range []string{"JOBSET_RESTART_ATTEMPT", "RESTART_ATTEMPT"} {
			if n := env.of(v); n >= 0 {
				s.join += "." + strconv.Itoa(n)
				break
			}
		}
		return s, true
	}
	if name, ok := strings.CutSuffix(env.Hostname, "-"+strconv.Itoa(index)); ok && name != "" {
		s.join = "job-" + name
	}
	return s, true
}

// ray is a worker of Ray Train.
func ray(env Environment) (source, bool) {
	job := env.Getenv("RAY_JOB_ID")
	s := source{name: "Ray (NODE_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE)", nodes: -1, node: env.of("NODE_RANK")}
	if world, per := env.of("WORLD_SIZE"), env.of("LOCAL_WORLD_SIZE"); world > 0 && per > 0 && world%per == 0 {
		s.nodes = world / per
	}
	if job != "" {
		s.join = "ray-" + job
	}
	return s, job != "" && s.node >= 0
}
