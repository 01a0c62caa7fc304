// CUPTI's range profiler behind plain C functions, for ctypes: counters of launches of this process, without ncu.
//
// A session holds one set of metrics for one context. A collection is: begin, then until all passes are submitted
// {start, launch, stop}, then read. Every function that returns an int gives 0, or -1 and the reason by ranges_error().
//
// Built by compare.py with the headers beside the libcupti that torch loaded.

#include <cuda.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_result.h>
#include <cupti_target.h>
#include <cupti_version.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::string last_error;

void checked(CUptiResult result, const char* name) {
    if (result == CUPTI_SUCCESS)
        return;
    const char* text = nullptr;
    cuptiGetResultString(result, &text);
    throw std::runtime_error(std::string(name) + ": " + (text ? text : "?") + " (" + std::to_string(int(result)) + ")");
}

#define PARAMS(kind, name) CUpti_##kind##_Params name = {CUpti_##kind##_Params_STRUCT_SIZE}
#define ON_PROFILER(kind, name) PARAMS(kind, name); name.pRangeProfilerObject = session->profiler
#define CALL(function, params) checked(function(&params), #function)

template <class Work>
int guarded(Work work) {
    try {
        work();
        return 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return -1;
    }
}

// Which counters a pass holds, and what the counted numbers give.
struct Host {
    CUpti_Profiler_Host_Object* object = nullptr;
    std::vector<uint8_t> config;

    Host(const char* chip, const uint8_t* available, const char** metrics, size_t count) {
        PARAMS(Profiler_Host_Initialize, made);
        made.profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER;
        made.pChipName = chip;
        made.pCounterAvailabilityImage = available;
        CALL(cuptiProfilerHostInitialize, made);
        object = made.pHostObject;
        try {
            schedule(metrics, count);
        } catch (...) {
            end();  // no destructor runs of what was not made
            throw;
        }
    }

    ~Host() { end(); }
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;

    void schedule(const char** metrics, size_t count) {
        PARAMS(Profiler_Host_ConfigAddMetrics, add);
        add.pHostObject = object;
        add.ppMetricNames = metrics;
        add.numMetrics = count;
        CALL(cuptiProfilerHostConfigAddMetrics, add);
        PARAMS(Profiler_Host_GetConfigImageSize, size);
        size.pHostObject = object;
        CALL(cuptiProfilerHostGetConfigImageSize, size);
        config.resize(size.configImageSize);
        PARAMS(Profiler_Host_GetConfigImage, image);
        image.pHostObject = object;
        image.configImageSize = config.size();
        image.pConfigImage = config.data();
        CALL(cuptiProfilerHostGetConfigImage, image);
    }

    size_t passes() {
        PARAMS(Profiler_Host_GetNumOfPasses, asked);
        asked.configImageSize = config.size();
        asked.pConfigImage = config.data();
        CALL(cuptiProfilerHostGetNumOfPasses, asked);
        return asked.numOfPasses;
    }

    void end() {
        PARAMS(Profiler_Host_Deinitialize, params);
        params.pHostObject = object;
        cuptiProfilerHostDeinitialize(&params);
    }
};

std::vector<uint8_t> availability(CUcontext context) {
    PARAMS(Profiler_GetCounterAvailability, params);
    params.ctx = context;
    CALL(cuptiProfilerGetCounterAvailability, params);
    std::vector<uint8_t> image(params.counterAvailabilityImageSize);
    params.pCounterAvailabilityImage = image.data();
    CALL(cuptiProfilerGetCounterAvailability, params);
    return image;
}

// Of a context: its profiler, the counters that it collects, and how.
struct Session {
    std::vector<std::string> names;
    std::vector<const char*> metrics;
    std::vector<uint8_t> available, image;
    Host* host = nullptr;
    CUcontext context = nullptr;
    CUpti_RangeProfiler_Object* profiler = nullptr;
    CUpti_ProfilerRange range;
    CUpti_ProfilerReplayMode replay;
    size_t most;
};

void enable(Session* session) {
    PARAMS(RangeProfiler_Enable, params);
    params.ctx = session->context;
    CALL(cuptiRangeProfilerEnable, params);
    session->profiler = params.pRangeProfilerObject;
}

void disable(Session* session) {
    if (session->profiler == nullptr)
        return;
    ON_PROFILER(RangeProfiler_Disable, params);
    session->profiler = nullptr;
    CALL(cuptiRangeProfilerDisable, params);
}

// An empty image, which the profiler fills, and the first pass next.
void configure(Session* session) {
    std::vector<uint8_t>& image = session->image;
    ON_PROFILER(RangeProfiler_GetCounterDataSize, size);
    size.pMetricNames = session->metrics.data();
    size.numMetrics = session->metrics.size();
    size.maxNumOfRanges = session->most;
    size.maxNumRangeTreeNodes = uint32_t(session->most);
    CALL(cuptiRangeProfilerGetCounterDataSize, size);
    image.assign(size.counterDataSize, 0);
    ON_PROFILER(RangeProfiler_CounterDataImage_Initialize, made);
    made.counterDataSize = image.size();
    made.pCounterData = image.data();
    CALL(cuptiRangeProfilerCounterDataImageInitialize, made);
    ON_PROFILER(RangeProfiler_SetConfig, params);
    params.configSize = session->host->config.size();
    params.pConfig = session->host->config.data();
    params.counterDataImageSize = image.size();
    params.pCounterDataImage = image.data();
    params.range = session->range;
    params.replayMode = session->replay;
    params.maxRangesPerPass = session->most;
    params.numNestingLevels = 1;
    params.minNestingLevel = 1;
    CALL(cuptiRangeProfilerSetConfig, params);
}

void open(Session* session, size_t device) {
    PARAMS(Profiler_Initialize, start);
    CALL(cuptiProfilerInitialize, start);
    for (const std::string& name : session->names)
        session->metrics.push_back(name.c_str());
    PARAMS(Device_GetChipName, chip);
    chip.deviceIndex = device;
    CALL(cuptiDeviceGetChipName, chip);
    session->available = availability(session->context);
    session->host =
        new Host(chip.pChipName, session->available.data(), session->metrics.data(), session->metrics.size());
    enable(session);
}

}  // namespace

extern "C" {

const char* ranges_error() { return last_error.c_str(); }

// Versions of CUPTI: of the headers, and of the library.
int ranges_versions(uint32_t* compiled, uint32_t* loaded) {
    return guarded([&] {
        *compiled = CUPTI_API_VERSION;
        checked(cuptiGetVersion(loaded), "cuptiGetVersion");
    });
}

int ranges_close(Session* session) {
    int status = guarded([&] { disable(session); });
    delete session->host;
    delete session;
    return status;
}

// A session on a context, enabled, or null. automatic: a range around each kernel, else those of push and pop; kernels:
// CUPTI replays each kernel by itself, else the caller repeats what is between start and stop; most: ranges.
Session* ranges_open(
    void* context, size_t device, const char** metrics, size_t count, int automatic, int kernels, size_t most) {
    Session* session = new Session;
    session->context = static_cast<CUcontext>(context);
    session->names.assign(metrics, metrics + count);
    session->range = automatic ? CUPTI_AutoRange : CUPTI_UserRange;
    session->replay = kernels ? CUPTI_KernelReplay : CUPTI_UserReplay;
    session->most = most;
    if (guarded([&] { open(session, device); }) == 0)
        return session;
    std::string why = last_error;
    ranges_close(session);
    last_error = why;
    return nullptr;
}

int ranges_passes(Session* session, size_t* passes) {
    return guarded([&] { *passes = session->host->passes(); });
}

// Before each collection. anew: on a profiler that is made anew, for where a second configuration of one is refused.
int ranges_begin(Session* session, int anew) {
    return guarded([&] {
        if (anew) {
            disable(session);
            enable(session);
        }
        configure(session);
    });
}

int ranges_start(Session* session) {
    return guarded([&] {
        ON_PROFILER(RangeProfiler_Start, params);
        CALL(cuptiRangeProfilerStart, params);
    });
}

// done: whether all passes are submitted.
int ranges_stop(Session* session, int* done) {
    return guarded([&] {
        ON_PROFILER(RangeProfiler_Stop, params);
        CALL(cuptiRangeProfilerStop, params);
        *done = params.isAllPassSubmitted;
    });
}

int ranges_push(Session* session, const char* name) {
    return guarded([&] {
        ON_PROFILER(RangeProfiler_PushRange, params);
        params.pRangeName = name;
        CALL(cuptiRangeProfilerPushRange, params);
    });
}

int ranges_pop(Session* session) {
    return guarded([&] {
        ON_PROFILER(RangeProfiler_PopRange, params);
        CALL(cuptiRangeProfilerPopRange, params);
    });
}

// What was collected: values[range * metrics + metric], of `found` ranges in their order. Ranges that were dropped, or
// are more than `values` was made for, are an error.
int ranges_read(Session* session, double* values, size_t* found) {
    return guarded([&] {
        ON_PROFILER(RangeProfiler_DecodeData, decoded);
        CALL(cuptiRangeProfilerDecodeData, decoded);
        if (decoded.numOfRangeDropped)
            throw std::runtime_error(std::to_string(decoded.numOfRangeDropped) + " ranges dropped");
        PARAMS(RangeProfiler_GetCounterDataInfo, info);
        info.pCounterDataImage = session->image.data();
        info.counterDataImageSize = session->image.size();
        CALL(cuptiRangeProfilerGetCounterDataInfo, info);
        if (info.numTotalRanges > session->most)
            throw std::runtime_error("more ranges than there is room for");
        for (size_t index = 0; index < info.numTotalRanges; index++) {
            PARAMS(Profiler_Host_EvaluateToGpuValues, asked);
            asked.pHostObject = session->host->object;
            asked.pCounterDataImage = session->image.data();
            asked.counterDataImageSize = session->image.size();
            asked.rangeIndex = index;
            asked.ppMetricNames = session->metrics.data();
            asked.numMetrics = session->metrics.size();
            asked.pMetricValues = values + index * session->metrics.size();
            CALL(cuptiProfilerHostEvaluateToGpuValues, asked);
        }
        *found = info.numTotalRanges;
    });
}

}  // extern "C"
