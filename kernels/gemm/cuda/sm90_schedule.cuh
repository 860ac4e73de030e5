// Which tile, and which part of its sum, a cluster of blocks computes next.
#pragma once
#include "common/cuda/ptx.cuh"

// The same in all blocks of a launch.
struct Tiles {
    // Tiles of a cluster along m and n, and matrices of the batch.
    u32 m, n, batch;
    // Blocks of 128 bytes along k; at least 1.
    u32 k;
    // Neighbours along m (along n if `n_first`) that are visited before the next column (row) of tiles, so that what they share is
    // still in the L2 cache.
    u32 group, n_first;
    // The first `streamed` tiles are cut along k, and all clusters get equal parts of them; the other tiles are computed whole.
    // `streamed` · `k` is 0 or at least the number of clusters, and less than 2³².
    u32 streamed;
};

// A tile and the range of its blocks along k.
struct Item {
    u32 m, n, batch;
    u32 begin, end;
};

// Items of one cluster, in order. Streamed tiles come first. All warps of a cluster see the same.
//
//     streamed tiles   |.......|.......|.......|     each 0 to k
//     clusters         0....|1....|2....|3....|      equal parts
//
// The cluster that has a tile's beginning finishes it: its part is the last it computes of the streamed tiles, while the others began with
// theirs. They are added in the order of k, so the result is the same in every run of a launch of this size.
//
// Who finishes a tile waits for clusters of higher numbers, so those are of the lower blocks, which start first: should others not find
// room, because another kernel is there, what they will wait for is done nevertheless.
struct Schedule {
    const Tiles &tiles;
    u32 cluster, clusters; // from the last block to the first if tiles are streamed
    u32 part, rest; // blocks along k of each cluster, and how many clusters get one more
    u32 at, end;   // blocks along k of all streamed tiles
    u32 whole;     // the next whole tile

    // Divisions take as long as a copy, so none is made for what most launches lack.
    // Of the blocks' cluster `place`.
    KP_FN Schedule(const Tiles &t, u32 place, u32 clusters) : tiles(t), cluster(place), clusters(clusters), part(0), rest(0) {
        if (t.streamed > 0) {
            part = t.streamed * t.k / clusters, rest = t.streamed * t.k % clusters;
            cluster = clusters - 1 - place;
        }
        at = bound(cluster), end = bound(cluster + 1);
        whole = t.streamed + cluster;
    }

    // Where cluster `c` begins.
    KP_FN u32 bound(u32 c) const { return c * part + min(c, rest); }

    // Whether there is no further item.
    KP_FN bool done() const { return at >= end && whole >= tiles.m * tiles.n * tiles.batch; }

    KP_FN bool next(Item &item) {
        u32 tile;
        if (at < end) {
            tile = at / tiles.k;
            item.begin = at - tile * tiles.k;
            item.end = min(tiles.k, item.begin + end - at);
            at += item.end - item.begin;
        } else {
            tile = whole;
            if (tile >= tiles.m * tiles.n * tiles.batch) return false;
            item.begin = 0, item.end = tiles.k;
            whole += clusters;
        }
        u32 rows = tiles.n_first ? tiles.n : tiles.m, columns = tiles.n_first ? tiles.m : tiles.n;
        item.batch = 0;
        if (tiles.batch > 1) item.batch = tile / (rows * columns), tile -= item.batch * rows * columns;
        u32 first = 0;
        if (rows > tiles.group) first = tile / (tiles.group * columns) * tiles.group, tile -= first * columns;
        u32 height = min(tiles.group, rows - first), column = tile;
        if (height > 1) column = tile / height;
        u32 row = first + tile - column * height;
        item.m = tiles.n_first ? column : row;
        item.n = tiles.n_first ? row : column;
        return true;
    }
};
